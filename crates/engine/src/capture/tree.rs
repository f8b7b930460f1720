//! Who is there: the processes below the guest, and what they must not share.

use super::{CaptureRequest, Context, cgroup_members, refuse};
use crate::error::CaptureError;
use crate::procfs::{self, Stat, Status};
use crate::restore::tree as plan;
use crate::stop::Stopped;
use branchbox_sys::kcmp::{self, Kind};
use std::cmp::Ordering;
use std::collections::HashMap;

/// A process below the guest.
#[derive(Debug, Clone, Default)]
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
    let classes = classes(live.len(), |a, b| kcmp::order(live[a].host_pid, live[b].host_pid, kind))?;
    Ok(classes.iter().find(|class| class.len() > 1).map(|class| (live[class[0]], live[class[1]])))
}

/// Groups the numbers below `count` that compare as equal, by the kernel's own order.
///
/// Inserts one by one instead of sorting with the comparison: it can fail, and an order that fails is none.
pub(crate) fn classes(
    count: usize,
    compare: impl Fn(usize, usize) -> std::io::Result<Ordering>,
) -> std::io::Result<Vec<Vec<usize>>> {
    let mut classes: Vec<Vec<usize>> = Vec::new();
    'next: for item in 0..count {
        let (mut low, mut high) = (0, classes.len());
        while low < high {
            let middle = low.midpoint(high);
            match compare(classes[middle][0], item)? {
                Ordering::Equal => {
                    classes[middle].push(item);
                    continue 'next;
                }
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        classes.insert(low, vec![item]);
    }
    Ok(classes)
}

/// Refuses a tree that no order of making could bring about.
pub(crate) fn refuse_impossible(context: &Context<'_>) -> Result<(), CaptureError> {
    let nodes: Vec<plan::Node> = context
        .members
        .iter()
        .map(|m| plan::Node { pid: m.pid, parent: m.parent, group: m.group, session: m.session })
        .collect();
    let Err(impossible) = plan::plan(&nodes) else { return Ok(()) };
    let member = context.members.iter().find(|member| member.pid == impossible.pid);
    let member = member.expect("the plan is about these members");
    let object = format!("session {}", impossible.session);
    let why = format!("its parent {} never was in that session", impossible.parent);
    Err(refuse(member, object, why, "end it and try again"))
}

/// Refuses SysV semaphores, queues and segments: they outlive processes and are found by key. The kernel shows them to
/// whoever is in the namespace.
pub(crate) fn refuse_sysv(context: &Context<'_>) -> Result<(), CaptureError> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let path = procfs::path(context.request.guest_pid, "ns/ipc");
    let looked: std::io::Result<Option<&str>> = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            let namespace = std::fs::File::open(path)?;
            let kind = Some(LinkNameSpaceType::InterProcessCommunication);
            move_into_link_name_space(rustix::fd::AsFd::as_fd(&namespace), kind)?;
            for (file, what) in [("sem", "semaphores"), ("msg", "message queues"), ("shm", "shared memory segments")] {
                if std::fs::read_to_string(format!("/proc/sysvipc/{file}"))?.lines().count() > 1 {
                    return Ok(Some(what));
                }
            }
            Ok(None)
        });
        look.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread in the namespace panicked")))
    });
    match looked.map_err(CaptureError::io("listing SysV objects"))? {
        None => Ok(()),
        Some(what) => {
            let guest = Member { host_pid: context.request.guest_pid, pid: 1, ..Member::default() };
            let owner = context.members.first().unwrap_or(&guest);
            Err(refuse(
                owner,
                format!("SysV {what} in its sandbox"),
                "they are not captured yet",
                "remove them with ipcrm",
            ))
        }
    }
}

/// The last id given out, which a restored namespace goes on from: what the guest read, or the highest id in use.
pub(crate) fn last_pid(context: &Context<'_>) -> i32 {
    let threads = context.stopped.tasks.iter().map(|task| crate::stop::inside(task.tid));
    let used = threads.chain(context.members.iter().map(|member| member.pid));
    used.chain([context.request.last_pid]).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::classes;

    #[test]
    fn equals_are_found_and_a_failing_order_is_told() {
        let values = [3, 1, 3, 2, 1];
        let found = classes(5, |a, b| Ok(values[a].cmp(&values[b]))).expect("an order");
        assert_eq!(found, [vec![1, 4], vec![3], vec![0, 2]]);
        assert!(classes(5, |_, _| Err(std::io::Error::other("gone"))).is_err());
    }
}
