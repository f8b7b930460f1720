//! Captures that are cut off at every point.

use crate::state::ended;
use crate::world::{Outcome, World, names, passages};
use std::time::Instant;

/// Tries to reach a passage that only some captures have, as processes come and go.
const TRIES: u32 = 3;

/// Cuts captures off at `word`; whether one was.
fn cut(world: &mut World, word: &str, action: &str) -> bool {
    for _ in 0..TRIES {
        world.arm(&format!("{word}:{action}"));
        let (outcome, ..) = world.capture(false);
        world.disarm();
        match (outcome, action) {
            (Outcome::Died, "kill") => {
                world.bury();
                return true;
            }
            (Outcome::Failed(error), "error") => {
                assert!(error.message.contains("fault point"), "{word}: {error:?}");
                return true;
            }
            (Outcome::Done, _) => {}
            (outcome, _) => panic!("{word}: {outcome:?}\n{}", world.state.log()),
        }
    }
    false
}

fn capture_again(world: &mut World, word: &str) {
    let (outcome, ..) = world.capture(false);
    assert!(matches!(outcome, Outcome::Done), "after {word}: {outcome:?}\n{}", world.state.log());
    world.check(&format!("after {word} and another capture"));
}

fn every_point(world: &mut World, action: &str, after: impl Fn(&mut World)) {
    let words = passages(&world.points());
    let (mut reached, mut missed) = (0, Vec::new());
    for word in &words {
        if cut(world, word, action) {
            reached += 1;
        } else {
            missed.push(word);
        }
        after(world);
        world.check(&format!("after {word}:{action}"));
        capture_again(world, word);
    }
    println!("{action}: {reached} of {} passages, not reached: {missed:?}", words.len());
    assert!(reached * 10 >= words.len() * 9, "too many points were not reached");
}

pub fn killed() {
    let mut world = World::new();
    every_point(&mut world, "kill", |world| {
        if !world.has_keeper() {
            world.adopt();
        }
    });
    world.shut_down();
}

/// Between any two points too: at instants spread over the time that a capture takes.
pub fn killed_between_points() {
    const INSTANTS: u32 = 50;
    let mut world = World::new();
    let begun = Instant::now();
    world.points();
    let whole = begun.elapsed();
    for instant in 0..INSTANTS {
        let wait = whole * instant / INSTANTS;
        world.kill_after(wait);
        world.adopt();
        world.check(&format!("killed {wait:?} into a capture"));
    }
    capture_again(&mut world, "all of them");
    println!("killed at {INSTANTS} instants within {whole:?}");
    world.shut_down();
}

pub fn failing() {
    let mut world = World::new();
    every_point(&mut world, "error", |_| {});
    world.shut_down();
}

/// The keeper dies in the capture, the next one while it puts things right, at every point that it passes then.
pub fn killed_while_taking_over() {
    let mut world = World::new();
    let points = world.points();
    let between = points.iter().filter(|point| *point == "live.enter").count() / 2;
    // With a thread on the stub, and with a batch page that nobody knows of.
    for first in ["live.batch#1".to_owned(), format!("live.enter#{between}")] {
        assert!(cut(&mut world, &first, "kill"));
        let _ = std::fs::remove_file(&world.list);
        world.adopt();
        let words = passages(&names(&world.list));
        assert!(words.iter().any(|word| word.starts_with("recover.cleared")), "{words:?}");
        world.check(&first);
        for word in &words {
            assert!(cut(&mut world, &first, "kill"));
            world.arm(&format!("{word}:kill"));
            let mut child = world.start();
            ended(&mut child);
            world.disarm();
            world.adopt();
            world.check(&format!("after {first} and {word} of the next keeper"));
        }
        println!("{first}: {} points of the next keeper", words.len());
        capture_again(&mut world, &first);
    }
    world.shut_down();
}

/// Processes that cannot be stopped, or not by us, are no reason to lose a sandbox.
pub fn hindered() {
    let mut world = World::new();
    world.spawn("exec ./programs vforker");
    world.spawn("exec ./programs tracer");
    assert_eq!(world.run("until [ -e vforker -a -e tracer ]; do sleep 0.01; done; echo both"), "both");
    world.arm("keeper.held:kill");
    assert!(matches!(world.capture(false).0, Outcome::Died));
    world.disarm();
    world.bury();
    world.adopt();
    world.counts_on();
    assert_eq!(world.run("pgrep -xc programs"), "8");
    let (outcome, ..) = world.capture(false);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    world.counts_on();
    world.shut_down();
}
