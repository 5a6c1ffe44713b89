//! Whether one replica is up: a state machine fed by checks and by refused connections.
//!
//! It reads no clock; every step takes the time as an argument.

use std::time::{Duration, Instant};

/// When a replica counts as up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path of the check; any 2xx answer is good.
    pub path: String,
    /// Time between two checks of one replica.
    pub interval: Duration,
    /// A check without an answer after this time has failed.
    pub timeout: Duration,
    /// So many good checks in a row bring a replica up that was down.
    pub rise: u32,
    /// So many failed checks in a row take a replica down.
    pub fall: u32,
    /// A replica that refused a connection stays out at least this long.
    pub eject_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: "/health".to_owned(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
            eject_time: Duration::from_secs(1),
        }
    }
}

/// What is known of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not checked yet.
    Unknown,
    /// Takes requests.
    Up,
    /// Takes requests only where no replica of its pool is up.
    Down,
    /// Takes no new requests, whatever its health; ends those that it has.
    Draining,
}

impl State {
    /// All states, for metrics.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Up, Self::Down, Self::Draining];

    /// The label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
            Self::Draining => "draining",
        }
    }
}

/// Something that was seen of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A check was answered well.
    CheckPassed,
    /// A check was answered badly, or not in time.
    CheckFailed,
    /// A request could not connect.
    ConnectFailed,
}

/// The health of one replica.
#[derive(Clone, Debug)]
pub struct Health {
    state: State,
    /// Outcomes of the kind that would change the state, in a row.
    streak: u32,
    ejected_until: Option<Instant>,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: State::Unknown, streak: 0, ejected_until: None }
    }
}

impl Health {
    /// What is known now.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes note of `outcome`.
    pub fn observe(&mut self, outcome: Outcome, now: Instant, settings: &Settings) {
        match outcome {
            Outcome::ConnectFailed => {
                self.ejected_until = Some(now + settings.eject_time);
                self.turn(State::Down);
            }
            Outcome::CheckPassed => self.count(State::Up, settings.rise, now),
            Outcome::CheckFailed => self.count(State::Down, settings.fall, now),
        }
    }

    /// One more sign that the state is `seen`; `enough` of them in a row make it so. The very first check decides by itself.
    fn count(&mut self, seen: State, enough: u32, now: Instant) {
        if self.state == seen {
            self.streak = 0;
            return;
        }
        self.streak += 1;
        let ejected = seen == State::Up && self.ejected_until.is_some_and(|until| now < until);
        if !ejected && (self.streak >= enough || self.state == State::Unknown) {
            self.turn(seen);
        }
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.streak = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{CheckFailed, CheckPassed, ConnectFailed};
    use State::{Down, Unknown, Up};

    /// Applies outcomes at their times (ms) and checks the state after each.
    fn check(steps: &[(u64, Outcome, State)]) {
        let (mut health, start) = (Health::default(), Instant::now());
        let settings = Settings { rise: 2, fall: 3, ..Settings::default() };
        assert_eq!(health.state(), Unknown);
        for (number, &(at, outcome, state)) in steps.iter().enumerate() {
            health.observe(outcome, start + Duration::from_millis(at), &settings);
            assert_eq!(health.state(), state, "after step {number} of {steps:?}");
        }
    }

    #[test]
    fn the_first_check_decides() {
        check(&[(0, CheckPassed, Up)]);
        check(&[(0, CheckFailed, Down)]);
    }

    #[test]
    fn it_falls_and_rises_after_so_many_in_a_row() {
        check(&[
            (0, CheckPassed, Up),
            (1, CheckFailed, Up),
            (2, CheckFailed, Up),
            (3, CheckPassed, Up),
            (4, CheckFailed, Up),
            (5, CheckFailed, Up),
            (6, CheckFailed, Down),
            (7, CheckPassed, Down),
            (8, CheckFailed, Down),
            (9, CheckPassed, Down),
            (10, CheckPassed, Up),
        ]);
    }

    #[test]
    fn a_refused_connection_ejects_at_once_and_for_a_while() {
        check(&[
            (0, CheckPassed, Up),
            (100, ConnectFailed, Down),
            (200, CheckPassed, Down),
            (300, CheckPassed, Down),
            (1_099, CheckPassed, Down),
            (1_100, CheckPassed, Up),
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
            (4_001, CheckPassed, Up),
        ]);
    }
}
