//! In which order, and by whom, processes are made so that parents, sessions and groups come out right. Pure.
//!
//! A new process gets its maker's session and group, and its maker (or, with `CLONE_PARENT`, its maker's parent) as parent.
//! So: who leads its session is made by its parent and then leaves for a session of its own; who shares its parent's
//! session is made by the parent afterwards; an orphan (a child of the guest in somebody else's session) is made as a
//! sibling by a member of that session that is itself a child of the guest, or by way of an intermediate child that ends at
//! once. Sessions and groups whose leader is gone get a stand-in with the leader's id, which ends when everybody has joined.

use std::collections::{HashMap, HashSet};

/// What matters of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// The guest makes a child.
    Guest { pid: i32 },
    /// A process makes a child.
    Child { by: i32, pid: i32 },
    /// A process makes a sibling: a child of its own parent.
    Sibling { by: i32, pid: i32 },
    /// A process makes a child through an intermediate one that ends, so that the guest becomes its parent.
    Orphan { by: i32, pid: i32 },
    /// A process begins a session.
    Session { pid: i32 },
    /// A process joins (or begins) a group.
    Group { pid: i32, group: i32 },
    /// A stand-in ends; `parent` is who waits for it, 1 being the guest.
    End { pid: i32, parent: i32 },
}

/// A tree that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} is in session {session}, which its parent {parent} never was in")]
pub(crate) struct Impossible {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
}

/// Plans the making of all processes.
pub(crate) fn plan(nodes: &[Node]) -> Result<Vec<Op>, Impossible> {
    let mut planner = Planner {
        nodes,
        by_pid: nodes.iter().map(|node| (node.pid, *node)).collect(),
        made: HashSet::new(),
        group_of: HashMap::new(),
        stand_ins: Vec::new(),
        ops: Vec::new(),
    };
    planner.children_of(1, 0)?;
    planner.orphans()?;
    planner.groups();
    for (pid, parent) in std::mem::take(&mut planner.stand_ins) {
        planner.ops.push(Op::End { pid, parent });
    }
    Ok(planner.ops)
}

struct Planner<'a> {
    nodes: &'a [Node],
    by_pid: HashMap<i32, Node>,
    made: HashSet<i32>,
    /// The group each made process is in so far.
    group_of: HashMap<i32, i32>,
    stand_ins: Vec<(i32, i32)>,
    ops: Vec<Op>,
}

impl Planner<'_> {
    /// Makes the children of a process: those of the session it was born in before it leaves, the rest after.
    fn children_of(&mut self, parent: i32, born_in: i32) -> Result<(), Impossible> {
        let own = self.by_pid.get(&parent).map_or(0, |node| node.session);
        let children: Vec<Node> = self.nodes.iter().filter(|node| node.parent == parent).copied().collect();
        if parent == 1 {
            for child in children.iter().filter(|child| child.session == child.pid) {
                self.push(Op::Guest { pid: child.pid }, *child, 0);
                self.enter(*child, 0)?;
            }
            return Ok(());
        }
        let leads = own == parent;
        for child in &children {
            if leads && child.session == born_in && child.session != child.pid {
                self.push(Op::Child { by: parent, pid: child.pid }, *child, parent);
                self.enter(*child, born_in)?;
            }
        }
        if leads {
            self.ops.push(Op::Session { pid: parent });
            self.group_of.insert(parent, parent);
        }
        for child in children {
            if self.made.contains(&child.pid) {
                continue;
            }
            if child.session != own && child.session != child.pid {
                return Err(Impossible { pid: child.pid, parent, session: child.session });
            }
            self.push(Op::Child { by: parent, pid: child.pid }, child, parent);
            self.enter(child, own)?;
        }
        Ok(())
    }

    fn enter(&mut self, node: Node, born_in: i32) -> Result<(), Impossible> {
        self.children_of(node.pid, born_in)
    }

    fn push(&mut self, op: Op, node: Node, maker: i32) {
        self.ops.push(op);
        self.made.insert(node.pid);
        let group = self.group_of.get(&maker).copied().unwrap_or(0);
        self.group_of.insert(node.pid, group);
    }

    /// Children of the guest in sessions that they do not lead.
    fn orphans(&mut self) -> Result<(), Impossible> {
        let orphans: Vec<Node> =
            self.nodes.iter().filter(|node| node.parent == 1 && node.session != node.pid).copied().collect();
        for orphan in orphans {
            let session = orphan.session;
            let sibling = self.nodes.iter().find(|node| {
                node.session == session && node.parent == 1 && self.made.contains(&node.pid) && node.pid != orphan.pid
            });
            let stand_in = self.stand_ins.iter().any(|&(pid, parent)| pid == session && parent == 1);
            let member = self.nodes.iter().find(|node| node.session == session && self.made.contains(&node.pid));
            let (op, maker) = match (sibling, stand_in, member) {
                (Some(sibling), ..) => (Op::Sibling { by: sibling.pid, pid: orphan.pid }, sibling.pid),
                (None, true, _) => (Op::Sibling { by: session, pid: orphan.pid }, session),
                (None, false, Some(member)) => (Op::Orphan { by: member.pid, pid: orphan.pid }, member.pid),
                (None, false, None) => {
                    self.ops.push(Op::Guest { pid: session });
                    self.ops.push(Op::Session { pid: session });
                    self.group_of.insert(session, session);
                    self.stand_ins.push((session, 1));
                    (Op::Sibling { by: session, pid: orphan.pid }, session)
                }
            };
            self.push(op, orphan, maker);
            self.enter(orphan, session)?;
        }
        Ok(())
    }

    /// Puts everybody into its group, leaders first; a group without its leader gets a stand-in.
    fn groups(&mut self) {
        for node in self.nodes {
            if node.group == node.pid && self.group_of.get(&node.pid) != Some(&node.pid) {
                self.join(node.pid, node.pid);
            }
        }
        for node in self.nodes {
            if self.group_of.get(&node.pid) == Some(&node.group) {
                continue;
            }
            let leader_lives = self.by_pid.get(&node.group).is_some_and(|leader| leader.session == node.session);
            let stands_in = self.stand_ins.iter().any(|&(pid, _)| pid == node.group);
            if !leader_lives && !stands_in {
                self.ops.push(Op::Child { by: node.pid, pid: node.group });
                self.join(node.group, node.group);
                self.stand_ins.push((node.group, node.pid));
            }
            self.join(node.pid, node.group);
        }
    }

    fn join(&mut self, pid: i32, group: i32) {
        self.ops.push(Op::Group { pid, group });
        self.group_of.insert(pid, group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pid: i32, parent: i32, group: i32, session: i32) -> Node {
        Node { pid, parent, group, session }
    }

    /// Carries out a plan on a model of the kernel's rules and gives who everybody is then.
    fn run(ops: &[Op]) -> HashMap<i32, Node> {
        let mut all: HashMap<i32, Node> = HashMap::from([(1, node(1, 0, 0, 0))]);
        for op in ops {
            match *op {
                Op::Guest { pid } => drop(all.insert(pid, node(pid, 1, 0, 0))),
                Op::Child { by, pid } => {
                    let maker = all[&by];
                    assert!(all.insert(pid, Node { pid, parent: by, ..maker }).is_none());
                }
                Op::Sibling { by, pid } => {
                    let maker = all[&by];
                    assert!(all.insert(pid, Node { pid, ..maker }).is_none());
                }
                Op::Orphan { by, pid } => {
                    let maker = all[&by];
                    assert!(all.insert(pid, Node { pid, parent: 1, ..maker }).is_none());
                }
                Op::Session { pid } => {
                    assert!(!all.values().any(|other| other.group == pid), "{pid} leads a group");
                    let own = all.get_mut(&pid).expect("exists");
                    (own.session, own.group) = (pid, pid);
                }
                Op::Group { pid, group } => {
                    let session = all[&pid].session;
                    assert!(pid == group || all.values().any(|other| other.group == group && other.session == session));
                    assert_ne!(all[&pid].session, pid, "a session leader cannot change its group");
                    all.get_mut(&pid).expect("exists").group = group;
                }
                Op::End { pid, parent } => assert_eq!(all.remove(&pid).map(|gone| gone.parent), Some(parent)),
            }
        }
        all.remove(&1);
        all
    }

    fn check(nodes: &[Node]) {
        let ops = plan(nodes).expect("possible");
        let made = run(&ops);
        assert_eq!(made, nodes.iter().map(|node| (node.pid, *node)).collect(), "{ops:?}");
    }

    #[test]
    fn a_command_with_a_pipeline_and_job_control() {
        check(&[node(5, 1, 5, 5), node(6, 5, 6, 5), node(7, 5, 6, 5), node(8, 7, 6, 5)]);
    }

    #[test]
    fn an_orphan_in_a_living_session() {
        check(&[node(5, 1, 5, 5), node(9, 1, 5, 5), node(10, 9, 5, 5)]);
    }

    #[test]
    fn an_orphan_whose_session_leader_is_no_child_of_the_guest() {
        check(&[node(5, 1, 5, 5), node(6, 5, 6, 6), node(9, 1, 6, 6)]);
    }

    #[test]
    fn a_daemon_whose_session_leader_is_gone() {
        check(&[node(9, 1, 7, 7), node(10, 9, 7, 7), node(11, 1, 7, 7)]);
    }

    #[test]
    fn a_group_whose_leader_is_gone() {
        check(&[node(5, 1, 5, 5), node(6, 5, 20, 5), node(7, 6, 20, 5)]);
    }

    #[test]
    fn a_child_made_before_its_parent_left_the_session() {
        check(&[node(5, 1, 5, 5), node(6, 5, 6, 6), node(7, 6, 5, 5)]);
    }

    #[test]
    fn what_no_order_can_make_is_refused() {
        let nodes = [node(5, 1, 5, 5), node(6, 5, 6, 6), node(7, 6, 9, 9)];
        assert_eq!(plan(&nodes), Err(Impossible { pid: 7, parent: 6, session: 9 }));
    }
}
