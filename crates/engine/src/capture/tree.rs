//! Who is there: the processes below the guest, and what they must not share.

use super::{CaptureRequest, Context, cgroup_members, refuse};
use crate::error::CaptureError;
use crate::procfs::{self, Stat, Status};
use crate::stop::Stopped;
use branchbox_sys::kcmp::{self, Kind};
use std::cmp::Ordering;
use std::collections::HashMap;

/// A process below the guest.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Host id.
    pub host_pid: i32,
    /// Id inside.
    pub pid: i32,
    /// Parent's id inside.
    pub parent: i32,
    /// Process group inside.
    pub group: i32,
    /// Session inside.
    pub session: i32,
    /// Wait status, when it has ended.
    pub zombie: Option<i32>,
    /// Its cgroup below `work`.
    pub cgroup: String,
}

/// All processes below the guest, parents first.
pub(crate) fn members(request: &CaptureRequest<'_>, stopped: &Stopped) -> Result<Vec<Member>, CaptureError> {
    let cgroups: HashMap<i32, String> = cgroup_members(request.cgroup_work)?.into_iter().collect();
    let mut members: Vec<Member> = Vec::new();
    let mut queue = std::collections::VecDeque::from([(request.guest_pid, 1)]);
    while let Some((host_parent, parent)) = queue.pop_front() {
        for host_pid in procfs::children(host_parent).map_err(CaptureError::io("listing children"))? {
            let member =
                member(host_pid, parent, &cgroups).map_err(CaptureError::io(format!("reading process {host_pid}")))?;
            let held = stopped.tasks.iter().any(|task| task.pid == host_pid);
            if member.zombie.is_none() && !held {
                let why = "it is outside the cgroup that a capture stops";
                return Err(refuse(&member, "a cgroup of its own", why, "end it and try again"));
            }
            queue.push_back((host_pid, member.pid));
            members.push(member);
        }
    }
    let stray = stopped.tasks.iter().find(|task| !members.iter().any(|member| member.host_pid == task.pid));
    match stray {
        None => Ok(members),
        Some(task) => Err(CaptureError::Stop {
            waited_ms: 0,
            what: format!("process {} ({}) does not descend from the guest", task.pid, procfs::name(task.pid)),
        }),
    }
}

fn member(host_pid: i32, parent: i32, cgroups: &HashMap<i32, String>) -> std::io::Result<Member> {
    let status = Status::read(host_pid)?;
    let stat = Stat::read(host_pid)?;
    Ok(Member {
        host_pid,
        pid: status.inside("NSpid"),
        parent,
        group: status.inside("NSpgid"),
        session: status.inside("NSsid"),
        zombie: (stat.state() == 'Z').then(|| stat.exit_status()),
        cgroup: cgroups.get(&host_pid).cloned().unwrap_or_default(),
    })
}

/// Refuses processes that share what only threads should, and threads that do not share what they should.
pub(crate) fn refuse_sharing(context: &Context<'_>) -> Result<(), CaptureError> {
    let live: Vec<&Member> = context.members.iter().filter(|member| member.zombie.is_none()).collect();
    let kinds = [
        (Kind::Memory, "its memory"),
        (Kind::Files, "its descriptor table"),
        (Kind::Fs, "its working directory and root"),
        (Kind::SignalHandlers, "its signal handlers"),
    ];
    for (kind, what) in kinds {
        if let Some((a, b)) = sharing_pair(&live, kind).map_err(CaptureError::io("comparing processes"))? {
            let object = format!("{what} shared with process {}", b.pid);
            return Err(refuse(
                a,
                object,
                "processes that are no threads of one another share it",
                "end one of them and try again",
            ));
        }
    }
    for task in context.stopped.tasks.iter().filter(|task| task.tid != task.pid) {
        for (kind, what) in [(Kind::Files, "descriptor table"), (Kind::Fs, "working directory")] {
            let order = kcmp::order(task.pid, task.tid, kind).map_err(CaptureError::io("comparing threads"))?;
            if order != Ordering::Equal
                && let Some(member) = live.iter().find(|member| member.host_pid == task.pid)
            {
                let object = format!("a thread with a {what} of its own");
                return Err(refuse(
                    member,
                    object,
                    "threads are captured as sharing it",
                    "end the thread and try again",
                ));
            }
        }
    }
    Ok(())
}

fn sharing_pair<'m>(live: &[&'m Member], kind: Kind) -> std::io::Result<Option<(&'m Member, &'m Member)>> {
    let mut failure = None;
    let mut sorted = live.to_vec();
    sorted.sort_by(|a, b| {
        kcmp::order(a.host_pid, b.host_pid, kind).unwrap_or_else(|error| {
            failure = Some(error);
            a.host_pid.cmp(&b.host_pid)
        })
    });
    if let Some(error) = failure {
        return Err(error);
    }
    for pair in sorted.windows(2) {
        if kcmp::order(pair[0].host_pid, pair[1].host_pid, kind)? == Ordering::Equal {
            return Ok(Some((pair[0], pair[1])));
        }
    }
    Ok(None)
}

/// The highest id in use, which a restored namespace goes on from.
pub(crate) fn last_pid(context: &Context<'_>) -> i32 {
    let threads = context.stopped.tasks.iter().map(|task| crate::stop::inside(task.tid));
    threads.chain(context.members.iter().map(|member| member.pid)).max().unwrap_or(1)
}
