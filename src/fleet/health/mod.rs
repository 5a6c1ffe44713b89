//! Whether one replica is well: a state machine fed by checks and by what requests meet there.
//!
//! It reads no clock and draws no chance; every step takes both as arguments. What a state means for a choice is [`super::Pool`]'s business.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use strum::VariantArray;

/// When a replica counts as well, and for how long it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path of the check; any 2xx answer is good.
    pub path: String,
    /// Time between two checks of one replica.
    pub interval: Duration,
    /// A check without an answer after this time has failed.
    pub timeout: Duration,
    /// So many good checks in a row bring a replica back that was down.
    pub rise: u32,
    /// So many failed checks in a row take a replica down.
    pub fall: u32,
    /// How long a replica stays out when it is ejected for the first time in a while; twice as long each further time.
    pub eject_time: Duration,
    /// And at most so long. One that was well for this long begins anew.
    pub eject_time_max: Duration,
    /// So many requests in a row that broke before their first byte eject a replica.
    pub eject_failures: u32,
    /// So does this share of failures, in percent, among the requests of an `error_window`; 5xx answers without a body and answers that broke off count here
    /// as well.
    pub error_percent: u32,
    /// The time over which that share is taken.
    pub error_window: Duration,
    /// With fewer requests than these in an `error_window` its share says nothing.
    pub error_volume: u32,
    /// How long a replica is passed over that answered 429 or 503 without a `Retry-After`.
    pub busy_time: Duration,
    /// And at most so long, whatever its `Retry-After` says.
    pub busy_time_max: Duration,
    /// How long a new or returned replica takes to get its full share; zero: none.
    pub slow_start: Duration,
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
            eject_time_max: Duration::from_secs(30),
            eject_failures: 5,
            error_percent: 50,
            error_window: Duration::from_secs(10),
            error_volume: 20,
            busy_time: Duration::from_secs(1),
            busy_time_max: Duration::from_secs(10),
            slow_start: Duration::from_secs(10),
        }
    }
}

/// What is known of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum State {
    /// Not checked yet.
    Unknown,
    /// Takes requests.
    Up,
    /// In doubt: a check failed and no request was answered meanwhile, or it was out and has to pass a trial.
    Suspect,
    /// Takes requests only where no replica of its pool is better.
    Down,
    /// Takes no new request, since somebody wants it so; it may be well or not.
    Draining,
}

impl State {
    /// All states, for metrics.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Draining => "draining",
        }
    }
}

/// Something that was seen of a replica. What is not listed is neutral: 4xx answers, 5xx answers with a body, clients that left, deadlines that a
/// caller set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A check was answered well.
    CheckPassed,
    /// A check was answered badly, or not in time.
    CheckFailed,
    /// No connection could be made.
    ConnectFailed,
    /// A request broke, or ran out of time, before the first byte of its answer.
    Broke,
    /// A request was answered with a 5xx without a body.
    ServerError,
    /// An answer that had begun broke off, or stood still for too long.
    CutOff,
    /// The first byte of a good answer is here.
    Answered,
    /// A request was answered 429 or 503, with this `Retry-After`.
    Busy(Option<Duration>),
}

/// When something was seen, and what goes with it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub now: Instant,
    /// Good answers of the replica so far.
    pub answered: u64,
    /// Chance for the jitter of ejections, in `0.0..1.0`.
    pub chance: f64,
}

/// How a replica may be used, the best first. See [`super::Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// For everything.
    Ready,
    /// For a growing share of what others have, from then on.
    Warming(Instant),
    /// For one request at a time, which shows whether it is well again.
    OnTrial,
    /// Its last check failed.
    Doubtful,
    /// Not checked yet.
    Unknown,
    /// Out for a while, though its checks pass.
    Ejected,
    /// Its checks fail.
    Down,
    /// For nothing.
    Draining,
}

/// The health of one replica.
#[derive(Clone, Debug)]
pub struct Health {
    condition: Condition,
    /// Checks in a row that speak against the condition.
    streak: u32,
    /// Whether what was heard of it last, other than by requests, was bad.
    is_checked_bad: bool,
    /// Good answers that it had given at its last check.
    answered: u64,
    /// Requests in a row that broke.
    broken: u32,
    window: Option<Window>,
    ejection: Option<Ejection>,
    busy_until: Option<Instant>,
    /// It joined a fleet that was at work, so it has yet to warm up.
    is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Unknown,
    Up(Stay),
    /// Its last check failed, and earlier ones did not.
    Doubtful(Stay),
    OnTrial,
    /// By its checks; or ejected, so that it has to pass a trial when it returns.
    Down {
        ejected: bool,
    },
}

/// Being up, from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    since: Instant,
    warming: bool,
}

/// The last of some ejections in short succession.
#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    /// Those before it.
    earlier: u32,
    /// Whether it refused connections, so that checks tell of its return as well as requests do.
    by_connect: bool,
}

/// Failures among the requests since a time.
#[derive(Clone, Debug)]
struct Window {
    since: Instant,
    failed: u64,
    /// Good answers before it.
    answered: u64,
}

impl Health {
    /// One that nothing is known of. `is_new`: it joins a fleet that is at work already.
    pub fn new(is_new: bool) -> Self {
        Self {
            condition: Condition::Unknown,
            streak: 0,
            is_checked_bad: false,
            answered: 0,
            broken: 0,
            window: None,
            ejection: None,
            busy_until: None,
            is_new,
        }
    }

    /// What is known now.
    pub fn state(&self) -> State {
        match self.condition {
            Condition::Unknown => State::Unknown,
            Condition::Up(_) => State::Up,
            Condition::Doubtful(_) | Condition::OnTrial => State::Suspect,
            Condition::Down { .. } => State::Down,
        }
    }

    /// How it may be used, as of what was seen last.
    pub fn standing(&self) -> Standing {
        match self.condition {
            Condition::Unknown => Standing::Unknown,
            Condition::Up(Stay { since, warming: true }) => Standing::Warming(since),
            Condition::Up(_) => Standing::Ready,
            Condition::Doubtful(_) => Standing::Doubtful,
            Condition::OnTrial => Standing::OnTrial,
            Condition::Down { .. } if self.is_checked_bad => Standing::Down,
            Condition::Down { .. } => Standing::Ejected,
        }
    }

    /// Until when it wants no more work, as of what was seen last.
    pub fn busy_until(&self) -> Option<Instant> {
        self.busy_until
    }

    /// Whether a good answer would change anything. Where not, nobody needs to tell of one.
    pub fn awaits_answer(&self) -> bool {
        self.broken > 0 || self.condition == Condition::OnTrial
    }

    /// Takes note of `outcome`.
    pub fn observe(&mut self, outcome: Outcome, at: Moment, settings: &Settings) {
        self.pass_time(at.now, settings);
        match outcome {
            Outcome::CheckPassed => {
                self.answered = at.answered;
                self.check_passed(at.now, settings);
            }
            Outcome::CheckFailed => self.check_failed(at, settings),
            Outcome::ConnectFailed => {
                self.is_checked_bad = true;
                match self.condition {
                    Condition::Down { .. } => self.streak = 0,
                    _ => self.eject(true, at, settings),
                }
            }
            Outcome::Broke => {
                self.broken = self.broken.saturating_add(1);
                self.request_failed(at, settings);
            }
            Outcome::ServerError | Outcome::CutOff => self.request_failed(at, settings),
            Outcome::Answered => {
                self.broken = 0;
                if self.condition == Condition::OnTrial {
                    self.come_up(at.now, true);
                }
            }
            Outcome::Busy(wish) => {
                let time = wish.unwrap_or(settings.busy_time).min(settings.busy_time_max);
                // Many say the same at once: the picture need not be drawn anew for each of them, nor for one that is busy for no time.
                if !time.is_zero() && self.busy_until.is_none_or(|until| until < at.now + time.mul_f64(0.75)) {
                    self.busy_until = Some(at.now + time);
                }
            }
        }
    }

    /// Takes note that it gets requests again, after a time in which it got none and may have been started anew.
    pub fn rejoin(&mut self, now: Instant) {
        if let Condition::Up(stay) | Condition::Doubtful(stay) = &mut self.condition {
            *stay = Stay { since: now, warming: true };
        }
    }

    /// What is over by itself.
    fn pass_time(&mut self, now: Instant, settings: &Settings) {
        self.busy_until = self.busy_until.filter(|&until| now < until);
        if let Condition::Up(stay) | Condition::Doubtful(stay) = &mut self.condition {
            stay.warming &= now < stay.since + settings.slow_start;
        }
    }

    fn check_passed(&mut self, now: Instant, settings: &Settings) {
        self.is_checked_bad = false;
        let is_out = self.ejection.is_some_and(|ejection| now < ejection.until);
        match self.condition {
            // The very first check decides by itself.
            Condition::Unknown => self.come_up(now, self.is_new),
            Condition::Up(_) => self.streak = 0,
            Condition::Doubtful(stay) => self.turn(Condition::Up(stay)),
            Condition::OnTrial | Condition::Down { .. } => {
                self.streak = self.streak.saturating_add(1);
                if self.streak >= settings.rise && !is_out {
                    match (self.condition, self.ejection) {
                        (Condition::Down { ejected: true }, _) => self.turn(Condition::OnTrial),
                        (Condition::OnTrial, Some(Ejection { by_connect: false, .. })) => {}
                        _ => self.come_up(now, true),
                    }
                }
            }
        }
    }

    fn check_failed(&mut self, at: Moment, settings: &Settings) {
        self.is_checked_bad = true;
        // One that answers requests meanwhile is slow to be checked, and does not hang.
        let answers = at.answered > self.answered;
        self.answered = at.answered;
        self.streak = match self.condition {
            Condition::Unknown | Condition::OnTrial => settings.fall,
            Condition::Up(_) | Condition::Doubtful(_) => self.streak.saturating_add(1),
            Condition::Down { .. } => 0,
        };
        match self.condition {
            Condition::Down { .. } => {}
            _ if self.streak >= settings.fall => self.turn(Condition::Down { ejected: self.condition == Condition::OnTrial }),
            Condition::Up(stay) if !answers => self.condition = Condition::Doubtful(stay),
            _ => {}
        }
    }

    fn request_failed(&mut self, at: Moment, settings: &Settings) {
        if matches!(self.condition, Condition::Down { .. }) {
            // What was under way when it went down says nothing new.
            return;
        }
        let fresh = || Window { since: at.now, failed: 0, answered: at.answered };
        let mut window = self.window.take().filter(|window| at.now < window.since + settings.error_window).unwrap_or_else(fresh);
        window.failed += 1;
        let volume = window.failed + at.answered.saturating_sub(window.answered);
        let too_many = volume >= u64::from(settings.error_volume) && window.failed * 100 >= volume * u64::from(settings.error_percent);
        self.window = Some(window);
        if too_many || self.broken >= settings.eject_failures || self.condition == Condition::OnTrial {
            self.eject(false, at, settings);
        }
    }

    /// Takes it out, for twice as long as the last time unless that was long ago.
    fn eject(&mut self, by_connect: bool, at: Moment, settings: &Settings) {
        let is_forgotten = match self.condition {
            Condition::Up(stay) | Condition::Doubtful(stay) => at.now.saturating_duration_since(stay.since) >= settings.eject_time_max,
            _ => false,
        };
        let earlier = self.ejection.filter(|_| !is_forgotten).map_or(0, |ejection| ejection.earlier.saturating_add(1));
        let time = settings.eject_time.saturating_mul(2_u32.saturating_pow(earlier)).min(settings.eject_time_max);
        // A little less, by chance: so many routers do not come back at one moment.
        let time = time.mul_f64(1.0 - 0.2 * at.chance.clamp(0.0, 1.0));
        self.ejection = Some(Ejection { until: at.now + time, earlier, by_connect });
        self.turn(Condition::Down { ejected: true });
    }

    fn come_up(&mut self, now: Instant, warming: bool) {
        self.turn(Condition::Up(Stay { since: now, warming }));
    }

    fn turn(&mut self, condition: Condition) {
        self.condition = condition;
        self.streak = 0;
        self.broken = 0;
        self.window = None;
    }
}
