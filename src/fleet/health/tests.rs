//! What was seen when, and the state that follows.

use super::*;
use Outcome::{Answered, Broke, Busy, CheckFailed, CheckPassed, ConnectFailed, ServerError};
use State::{Down, Suspect, Unknown, Up};

fn settings() -> Settings {
    Settings { rise: 2, fall: 3, eject_failures: 3, ..Settings::default() }
}

/// Applies outcomes at their times (ms) and checks the state after each.
fn check(steps: &[(u64, Outcome, State)]) -> Health {
    let (mut health, start) = (Health::new(false), Instant::now());
    assert_eq!(health.state(), Unknown);
    let mut answered = 0;
    for (number, &(at, outcome, state)) in steps.iter().enumerate() {
        answered += u64::from(outcome == Answered);
        let at = Moment { now: start + Duration::from_millis(at), answered, chance: 0.0 };
        health.observe(outcome, at, &settings());
        assert_eq!(health.state(), state, "after step {number} of {steps:?}");
    }
    health
}

#[test]
fn the_first_check_decides() {
    check(&[(0, CheckPassed, Up)]);
    check(&[(0, CheckFailed, Down)]);
    check(&[(0, ConnectFailed, Down)]);
}

#[test]
fn it_falls_and_rises_after_so_many_in_a_row() {
    check(&[
        (0, CheckPassed, Up),
        (1, CheckFailed, Suspect),
        (2, CheckFailed, Suspect),
        (3, CheckPassed, Up),
        (4, CheckFailed, Suspect),
        (5, CheckFailed, Suspect),
        (6, CheckFailed, Down),
        (7, CheckPassed, Down),
        (8, CheckFailed, Down),
        (9, CheckPassed, Down),
        (10, CheckPassed, Up),
    ]);
}

#[test]
fn who_answers_requests_is_not_in_doubt_for_a_check() {
    check(&[
        (0, CheckPassed, Up),
        (1, Answered, Up),
        (2, CheckFailed, Up),
        (3, Answered, Up),
        (4, CheckFailed, Up),
        (5, Answered, Up),
        (6, CheckFailed, Down),
    ]);
    check(&[(0, Answered, Unknown), (1, CheckPassed, Up), (2, CheckFailed, Suspect), (3, Answered, Suspect), (4, CheckFailed, Suspect)]);
}

#[test]
fn a_refused_connection_ejects_at_once_and_for_a_while_then_a_request_decides() {
    check(&[
        (0, CheckPassed, Up),
        (100, ConnectFailed, Down),
        (200, CheckPassed, Down),
        (300, CheckPassed, Down),
        (1_099, CheckPassed, Down),
        (1_100, CheckPassed, Suspect),
        (1_150, Answered, Up),
    ]);
}

#[test]
fn after_refused_connections_checks_suffice_where_no_request_comes() {
    check(&[
        (0, CheckPassed, Up),
        (0, ConnectFailed, Down),
        (2_000, CheckPassed, Down),
        (3_000, CheckPassed, Suspect),
        (4_000, CheckPassed, Suspect),
        (5_000, CheckPassed, Up),
    ]);
}

#[test]
fn a_refused_connection_starts_the_count_anew() {
    check(&[
        (0, CheckPassed, Up),
        (1, ConnectFailed, Down),
        (2_000, CheckPassed, Down),
        (2_001, ConnectFailed, Down),
        (4_000, CheckPassed, Down),
        (4_001, CheckPassed, Suspect),
    ]);
}

#[test]
fn requests_that_break_in_a_row_eject_and_a_good_one_between_them_forgives() {
    check(&[(0, CheckPassed, Up), (1, Broke, Up), (2, Broke, Up), (3, Answered, Up), (4, Broke, Up), (5, Broke, Up), (6, Broke, Down)]);
}

#[test]
fn good_checks_do_not_forgive_requests_that_break() {
    let health = check(&[
        (0, CheckPassed, Up),
        (1, Broke, Up),
        (2, CheckPassed, Up),
        (3, Broke, Up),
        (4, CheckPassed, Up),
        (5, Broke, Down),
        (1_100, CheckPassed, Down),
        (1_200, CheckPassed, Suspect),
        (1_300, CheckPassed, Suspect),
        (9_000, CheckPassed, Suspect),
    ]);
    assert_eq!(health.standing(), Standing::OnTrial);
}

#[test]
fn each_failed_trial_doubles_the_time_up_to_a_bound_and_being_well_for_long_forgets() {
    let (mut health, mut now, mut times) = (Health::new(false), Instant::now(), Vec::new());
    let settings = settings();
    let see = |health: &mut Health, outcome, now| health.observe(outcome, Moment { now, answered: 0, chance: 0.0 }, &settings);
    see(&mut health, CheckPassed, now);
    for _ in 0..8 {
        see(&mut health, ConnectFailed, now);
        let out_since = now;
        while health.state() == Down {
            now += Duration::from_millis(100);
            see(&mut health, CheckPassed, now);
        }
        times.push((now - out_since).as_secs());
    }
    assert_eq!(times, [1, 2, 4, 8, 16, 30, 30, 30]);
    see(&mut health, Answered, now);
    now += Duration::from_secs(30);
    see(&mut health, ConnectFailed, now);
    see(&mut health, CheckPassed, now + Duration::from_millis(999));
    see(&mut health, CheckPassed, now + Duration::from_millis(999));
    assert_eq!(health.state(), Down);
    see(&mut health, CheckPassed, now + Duration::from_secs(1));
    assert_eq!(health.state(), Suspect);
}

#[test]
fn chance_shortens_an_ejection_by_a_fifth_at_most() {
    let start = Instant::now();
    for (chance, out) in [(0.0, 1_000), (0.5, 900), (1.0, 800), (7.0, 800)] {
        let mut health = Health::new(false);
        health.observe(ConnectFailed, Moment { now: start, answered: 0, chance }, &settings());
        let mut at = |ms| {
            let now = start + Duration::from_millis(ms);
            health.observe(CheckPassed, Moment { now, answered: 0, chance }, &settings());
            health.state()
        };
        assert_eq!([at(out - 2), at(out - 1), at(out)], [Down, Down, Suspect], "{chance}");
    }
}

#[test]
fn a_share_of_failures_ejects_where_there_were_enough_requests() {
    // (failed, answered) in one window, then whether it is out. 50 % of at least 20.
    for (failed, answered, state) in [(19, 0, Up), (20, 0, Down), (10, 10, Down), (10, 11, Up), (9, 11, Up), (100, 101, Up)] {
        let (mut health, now) = (Health::new(false), Instant::now());
        let moment = |answered| Moment { now, answered, chance: 0.0 };
        health.observe(CheckPassed, moment(7), &settings());
        health.observe(ServerError, moment(7), &settings());
        for _ in 1..failed {
            health.observe(ServerError, moment(7 + answered), &settings());
        }
        assert_eq!(health.state(), state, "{failed} failed, {answered} answered");
    }
}

#[test]
fn failures_of_another_time_do_not_count() {
    let (mut health, mut now) = (Health::new(false), Instant::now());
    health.observe(CheckPassed, Moment { now, answered: 0, chance: 0.0 }, &settings());
    for _ in 0..100 {
        now += Duration::from_millis(600);
        health.observe(ServerError, Moment { now, answered: 0, chance: 0.0 }, &settings());
        assert_eq!(health.state(), Up);
    }
}

#[test]
fn busy_is_for_as_long_as_it_says_and_no_longer_than_allowed() {
    let check = |wish: Option<u64>, until: u64| {
        let (mut health, now) = (Health::new(false), Instant::now());
        let at = |ms| Moment { now: now + Duration::from_millis(ms), answered: 0, chance: 0.0 };
        health.observe(CheckPassed, at(0), &settings());
        health.observe(Busy(wish.map(Duration::from_secs)), at(0), &settings());
        assert_eq!((health.state(), health.busy_until()), (Up, Some(now + Duration::from_millis(until))));
        health.observe(CheckPassed, at(until), &settings());
        assert_eq!(health.busy_until(), None);
    };
    check(None, 1_000);
    check(Some(3), 3_000);
    check(Some(3_600), 10_000);
    let mut health = Health::new(false);
    health.observe(Busy(Some(Duration::ZERO)), Moment { now: Instant::now(), answered: 0, chance: 0.0 }, &settings());
    assert_eq!(health.busy_until(), None);
}

#[test]
fn who_joins_late_or_returns_warms_up_and_who_was_there_does_not() {
    let start = Instant::now();
    let see = |health: &mut Health, outcomes: &[(u64, Outcome)]| {
        for &(at, outcome) in outcomes {
            health.observe(outcome, Moment { now: start + Duration::from_secs(at), answered: 0, chance: 0.0 }, &settings());
        }
        health.standing()
    };
    assert_eq!(see(&mut Health::new(false), &[(0, CheckPassed)]), Standing::Ready);
    let mut late = Health::new(true);
    assert_eq!(see(&mut late, &[(0, CheckPassed)]), Standing::Warming(start));
    assert_eq!(see(&mut late, &[(9, CheckPassed)]), Standing::Warming(start));
    assert_eq!(see(&mut late, &[(10, CheckPassed)]), Standing::Ready);
    let down = [CheckPassed, CheckFailed, CheckFailed, CheckFailed, CheckPassed, CheckPassed].map(|outcome| (0, outcome));
    assert_eq!(see(&mut Health::new(false), &down), Standing::Warming(start));
    let mut drained = Health::new(false);
    see(&mut drained, &[(0, CheckPassed)]);
    drained.rejoin(start);
    assert_eq!(drained.standing(), Standing::Warming(start));
    // A doubt that goes leaves the cache as it was.
    assert_eq!(see(&mut Health::new(false), &[(0, CheckPassed), (0, CheckFailed), (0, CheckPassed)]), Standing::Ready);
}
