//! Every need for root of the host's initial namespaces, in one table, with what a machine without it would use.
//!
//! Running without root comes later and must not need a rewrite: whoever adds a need adds a row, and a row without an
//! answer in its last column is a decision to be argued.

/// One need for root of the initial namespaces.
#[derive(Debug, Clone, Copy)]
pub struct Privilege {
    /// What is done.
    pub act: &'static str,
    /// The right it takes.
    pub needs: &'static str,
    /// What a machine without root would use.
    pub rootless: &'static str,
}

/// The table.
pub const PRIVILEGES: &[Privilege] = &[
    Privilege {
        act: "map 65,536 host ids into a sandbox (uid_map, gid_map)",
        needs: "CAP_SETUID and CAP_SETGID",
        rootless: "newuidmap and newgidmap with a range of /etc/subuid, or one id",
    },
    Privilege {
        act: "id-mapped clones of layer directories",
        needs: "CAP_SYS_ADMIN over the file system",
        rootless: "an owner shift stored in the layers, or fuse-overlayfs",
    },
    Privilege {
        act: "overlay mounts over the image, made outside and handed in",
        needs: "CAP_SYS_ADMIN",
        rootless: "overlay with userxattr, mounted inside the user namespace",
    },
    Privilege {
        act: "a pool file mounted through a loop device",
        needs: "CAP_SYS_ADMIN",
        rootless: "a state directory that is on btrfs, or the plain driver",
    },
    Privilege {
        act: "subvolume snapshots and their deletion",
        needs: "CAP_SYS_ADMIN for deletion",
        rootless: "the mount option user_subvol_rm_allowed, or the plain driver",
    },
    Privilege {
        act: "control groups: limits, freezer, kill",
        needs: "write access to the hierarchies' roots",
        rootless: "a delegated v2 subtree (systemd's Delegate=yes)",
    },
    Privilege {
        act: "bind mounts of device nodes from /dev",
        needs: "nothing beyond the sandbox's own user namespace",
        rootless: "the same",
    },
    Privilege {
        act: "tracing a sandbox's processes and reading their memory",
        needs: "CAP_SYS_PTRACE over the sandbox's user namespace",
        rootless: "the user who made the namespace has it",
    },
    Privilege {
        act: "opening mapped files of others (/proc/PID/map_files)",
        needs: "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial namespace",
        rootless: "opening by path inside the tree and comparing the inode; deleted files are copied through memory",
    },
    Privilege {
        act: "userfaultfd for another user's memory with events",
        needs: "CAP_SYS_PTRACE in the initial namespace, or /dev/userfaultfd",
        rootless: "rights on /dev/userfaultfd, else filling by copying",
    },
    Privilege {
        act: "raising shared limits (fs.inotify.*, fs.pipe-user-pages-*)",
        needs: "root, once at the node's start",
        rootless: "an administrator sets them; doctor says which are low",
    },
];
