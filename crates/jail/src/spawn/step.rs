//! The steps of setting up a room, and how the child tells the parent about them.

/// What the child says over its pipe: eight bytes, the step (or [`PLACE_ME`]) and an error number.
pub(super) const REPORT_BYTES: usize = 8;
/// Not an error: the cgroup namespace is made, now move me to the place of process 1.
pub(super) const PLACE_ME: u32 = 0;

macro_rules! steps {
    ($($variant:ident = $number:literal, $text:literal;)*) => {
        /// A step of the setup that can fail.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is described by its text")]
        #[repr(u32)]
        pub enum Step {
            $($variant = $number,)*
        }

        impl Step {
            pub(super) fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The step as a sentence fragment.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

steps! {
    Wait = 1, "wait for the parent";
    CgroupNamespace = 2, "make the cgroup namespace";
    Identity = 3, "become the sandbox's root";
    Session = 4, "start a session";
    Hostname = 5, "set the host name";
    Loopback = 6, "bring loopback up";
    NamespaceLimits = 7, "forbid namespaces inside";
    Propagation = 8, "cut mount propagation";
    Trees = 9, "attach the file tree";
    Proc = 10, "mount /proc";
    LastPid = 11, "open ns_last_pid";
    Sys = 12, "mount /sys";
    Devices = 13, "attach device nodes";
    Terminals = 14, "mount /dev/pts";
    Masks = 15, "mask parts of /proc and /sys";
    GuestProgram = 16, "attach the guest's program";
    Pivot = 17, "change the root";
    Filter = 18, "install the system call filter";
    Exec = 19, "start the guest";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_hostile_ones_are_none() {
        assert_eq!(Step::from_number(Step::Exec as u32), Some(Step::Exec));
        assert_eq!(Step::from_number(PLACE_ME), None);
        assert_eq!(Step::from_number(u32::MAX), None);
    }
}
