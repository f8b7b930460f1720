//! Pauses that are cut off: until the image is whole and named the sandbox runs on, whatever becomes of the keeper.

use crate::world::{Outcome, World};

/// The points that a pause passes beside those of a capture.
const POINTS: &[&str] = &["pause.held", "capture.described", "capture.written", "pause.synced", "pause.named"];

pub fn failing() {
    let mut world = World::new();
    for point in POINTS {
        world.arm(&format!("{point}:error"));
        let (outcome, image) = world.pause();
        world.disarm();
        assert!(matches!(&outcome, Outcome::Failed(error) if error.message.contains("fault point")), "{outcome:?}");
        assert!(!image.exists() && !image.with_extension("part").exists(), "{point} left an image");
        world.check(&format!("after a pause that failed at {point}"));
    }
    let (outcome, ..) = world.capture(false);
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    world.shut_down();
}

pub fn killed() {
    let mut world = World::new();
    for point in POINTS {
        world.arm(&format!("{point}:kill"));
        let (outcome, image) = world.pause();
        world.disarm();
        assert!(matches!(outcome, Outcome::Died), "{point}: {outcome:?}");
        world.bury();
        assert_eq!(image.exists(), *point == "pause.named", "{point}: an image has its name when it is whole");
        world.adopt();
        world.check(&format!("after a keeper died at {point} of a pause"));
    }
    // What they left is no obstacle, and the last image, now stale, is replaced.
    let (outcome, image) = world.pause();
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert!(image.exists() && !image.with_extension("part").exists());
    world.assert_gone();
}
