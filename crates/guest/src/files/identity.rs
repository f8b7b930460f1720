//! Acting on files as a user, for the length of one operation.
//!
//! File-system ids instead of effective ones: the guest stays able to come back, and leaving uid 0 takes the file
//! capabilities away; coming back returns them. Valid only in a process with one thread.

use crate::users;
use branchbox_sys::fsids;
use rustix::process::Gid;
use rustix::thread::set_thread_groups;
use std::io;

/// While it lives, file operations are that user's; dropping it returns to root.
#[derive(Debug)]
pub struct Identity(());

impl Identity {
    /// Takes a user on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn assume(user: (u32, u32)) -> io::Result<Self> {
        let account = users::account(user.0, user.1);
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let identity = Self(());
        set_thread_groups(&groups)?;
        fsids::set(account.uid, account.gid)?;
        Ok(identity)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let back = fsids::set(0, 0).is_ok() && set_thread_groups(&[]).is_ok();
        assert!(back, "effective uid 0 may always return to file-system uid 0 and no groups");
    }
}
