//! Looking at the host and at a room's ways out.

use crate::room::Room;
use branchbox_jail::{check, closed};
use branchbox_testkit::needs;

pub const TESTS: &[crate::Test] =
    &[("this_host_has_what_is_required", host), ("a_room_is_closed_and_the_check_can_see_open_ones", ways_out)];

fn host() {
    let failed: Vec<_> = check::check_host().into_iter().filter(|check| check.required && !check.ok).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn ways_out() {
    closed::control().unwrap();
    let room = Room::new();
    let ways = closed::look_at(room.jail.pid).unwrap();
    assert!(ways.is_closed(), "{ways:?}");
    assert!(closed::is_enforced(room.jail.pid).unwrap());
    // The room's guest still has every right in its namespaces: let it make something that looks like a way out.
    let answer = room.ask("ip route add default dev lo 2>&1; ip -6 route add 2000::/3 dev lo 2>&1");
    if !needs::or_skip(!answer.contains("not found"), "ip(8) to open the room with") {
        return;
    }
    let ways = closed::look_at(room.jail.pid).unwrap();
    assert!(!ways.is_closed(), "{answer}: {ways:?}");
    assert!(!closed::is_enforced(room.jail.pid).unwrap());
}
