//! What a reader of `top` has chosen to see, and what keys do to it. It knows neither terminal nor clock.

use super::picture::{Picture, Replica};

/// By what replicas are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Fleet,
    InFlight,
    Share,
    FirstByte,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Fleet, Self::InFlight, Self::Share, Self::FirstByte];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fleet => "as configured",
            Self::InFlight => "in flight",
            Self::Share => "share",
            Self::FirstByte => "first byte",
        }
    }
}

/// A key that somebody pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Escape,
    Backspace,
}

/// What has to be done for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Leave,
    /// Look again, now.
    Look,
    Drain {
        name: String,
        drain: bool,
    },
}

/// Where keys go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// A filter is written.
    Filter,
    /// Somebody is asked whether to drain that one.
    Confirm {
        name: String,
        drain: bool,
    },
    Help,
}

/// All that is seen.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The last look; `None` before the first.
    pub(super) picture: Option<Picture>,
    /// Why there is no newer one.
    pub(super) trouble: Option<String>,
    /// What became of the last order.
    pub(super) notice: Option<String>,
    pub(super) mode: Mode,
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) selected: usize,
    pub(super) paused: bool,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            picture: None,
            trouble: None,
            notice: None,
            mode: Mode::Table,
            filter: String::new(),
            sort: Sort::Fleet,
            selected: 0,
            paused: false,
        }
    }

    /// The replicas that are shown, in their order.
    pub(super) fn replicas(&self) -> Vec<&Replica> {
        let Some(picture) = &self.picture else { return Vec::new() };
        let filter = self.filter.to_lowercase();
        let mut shown: Vec<&Replica> = picture.fleet.replicas.iter().filter(|one| one.name.to_lowercase().contains(&filter)).collect();
        let down = |one: f64, other: f64| other.total_cmp(&one);
        match self.sort {
            Sort::Fleet => {}
            Sort::InFlight => shown.sort_by_key(|one| std::cmp::Reverse(one.outstanding)),
            Sort::Share => shown.sort_by(|one, other| down(one.recent.share, other.recent.share)),
            Sort::FirstByte => {
                shown.sort_by(|one, other| down(one.recent.first_byte_p50.unwrap_or(-1.0), other.recent.first_byte_p50.unwrap_or(-1.0)))
            }
        }
        shown
    }

    /// A look has come to this.
    pub(super) fn looked(&mut self, result: Result<Picture, String>) {
        match result {
            Ok(picture) => {
                self.trouble = None;
                if !self.paused {
                    self.picture = Some(picture);
                }
            }
            Err(error) => self.trouble = Some(error),
        }
        self.selected = self.selected.min(self.replicas().len().saturating_sub(1));
    }

    /// What a key does; `page` is how many rows are seen.
    pub(super) fn press(&mut self, key: Key, page: usize) -> Option<Action> {
        match (self.mode.clone(), key) {
            (Mode::Confirm { name, drain }, Key::Char('y' | 'Y')) => {
                self.mode = Mode::Table;
                return Some(Action::Drain { name, drain });
            }
            (Mode::Confirm { .. } | Mode::Help, _) | (Mode::Filter, Key::Enter) => self.mode = Mode::Table,
            (Mode::Filter, Key::Escape) => (self.mode, self.filter) = (Mode::Table, String::new()),
            (Mode::Filter, Key::Backspace) => drop(self.filter.pop()),
            (Mode::Filter, Key::Char(c)) => self.filter.push(c),
            (Mode::Table, Key::Char('q') | Key::Escape) => return Some(Action::Leave),
            (Mode::Table, Key::Char('?' | 'h')) => self.mode = Mode::Help,
            (Mode::Table, Key::Char('/')) => self.mode = Mode::Filter,
            (Mode::Table, Key::Char('s')) => {
                let next = Sort::ALL.iter().position(|&sort| sort == self.sort).unwrap_or(0) + 1;
                self.sort = Sort::ALL[next % Sort::ALL.len()];
            }
            (Mode::Table, Key::Char('p')) => {
                self.paused = !self.paused;
                return (!self.paused).then_some(Action::Look);
            }
            (Mode::Table, Key::Char(c @ ('d' | 'u'))) => {
                if let Some(name) = self.replicas().get(self.selected).map(|replica| replica.name.clone()) {
                    self.mode = Mode::Confirm { name, drain: c == 'd' };
                }
            }
            (_, Key::Up) | (Mode::Table, Key::Char('k')) => self.selected = self.selected.saturating_sub(1),
            (_, Key::Down) | (Mode::Table, Key::Char('j')) => self.selected += 1,
            (_, Key::PageUp) => self.selected = self.selected.saturating_sub(page),
            (_, Key::PageDown) => self.selected += page,
            _ => {}
        }
        self.selected = self.selected.min(self.replicas().len().saturating_sub(1));
        None
    }

    /// What happens if that one is drained, or is no longer.
    pub(super) fn consequences(&self, name: &str, drain: bool) -> Vec<String> {
        let Some(picture) = &self.picture else { return Vec::new() };
        let Some(replica) = picture.fleet.replicas.iter().find(|replica| replica.name == name) else { return Vec::new() };
        if !drain {
            let health = replica.health.as_deref().unwrap_or("leaving");
            return vec![format!("{name} gets new requests again as soon as it is up; it is {health} now. Its keys come home.")];
        }
        let others = picture.fleet.replicas.iter().filter(|one| one.name != name && Picture::state(one) == "up").count();
        let left = match others {
            0 => "No other replica is up: requests will be answered with 503.".to_owned(),
            others => format!("Other replicas that are up, and take its keys: {others}."),
        };
        vec![
            format!("{name} gets no new requests until it is undrained, or the router restarts."),
            format!("In flight there: {}, which may end.", replica.outstanding),
            left,
        ]
    }
}
