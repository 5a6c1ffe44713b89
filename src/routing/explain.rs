//! What a strategy would do with a request, and why: for an operator who asks. Nothing is chosen, counted or remembered.

use std::sync::Arc;

use super::{Aim, Reason};
use crate::fleet::Replica;
use crate::request::{Boundary, Key};

/// A replica that a key's request was not sent to, and what it had to do at that moment.
#[derive(Clone, Debug)]
pub struct PassedOver {
    /// The key's home, or its first choice.
    pub replica: Arc<Replica>,
    /// Requests in flight there.
    pub outstanding: u64,
}

/// A boundary of a prompt, as it stands in its pool's traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The boundary.
    pub boundary: Boundary,
    /// The share of recent requests that begin with it, this one included; and above which it is hot. `None` where nobody counts.
    pub share: Option<f64>,
    /// See `share`.
    pub limit: Option<f64>,
    /// Whether so many share it that it is passed over, where a further one follows.
    pub is_hot: bool,
}

/// A key that many of a pool's recent requests have.
#[derive(Clone, Debug)]
pub struct HotKey {
    /// The key.
    pub key: Key,
    /// Its share of them, at least.
    pub share: f64,
    /// Where it belongs.
    pub home: Option<Arc<Replica>>,
}

/// What a request would be placed by.
#[derive(Clone, Debug, Default)]
pub struct Peek {
    /// As [`Chooser::aim`](super::Chooser::aim) would have it.
    pub aim: Aim,
    /// The prompt's boundaries, from its beginning on.
    pub steps: Vec<Step>,
    /// Which of them makes the key.
    pub chosen: usize,
    /// Whether the key was asked for of late; `None` where nobody counts.
    pub is_known: Option<bool>,
}

/// What a strategy would do.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Who would be chosen.
    pub would: Would,
    /// The candidates, in the order in which the strategy looks at them; full ones included.
    pub standings: Vec<Standing>,
}

/// Who would be chosen.
#[derive(Clone, Debug)]
pub enum Would {
    /// This one.
    Go {
        /// Who.
        replica: Arc<Replica>,
        /// Why.
        reason: Reason,
        /// In whose place, where it is not the key's first choice.
        instead_of: Option<PassedOver>,
    },
    /// One of several, by chance or in turn.
    Any(Reason),
    /// Nobody yet: the one that it would be has enough to do, and so it is held back.
    Hold(Arc<Replica>),
    /// Nobody: there is none, or none has room.
    Nobody,
}

/// A candidate as the strategy sees it.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Who.
    pub replica: Arc<Replica>,
    /// Its place in the key's order; `None` where the strategy goes by none.
    pub rank: Option<usize>,
    /// Whether it takes no more.
    pub is_full: bool,
    /// From how many in flight on its gate is closed now; `None` where it has none.
    pub threshold: Option<u64>,
    /// What a strategy with pictures of the replicas expects.
    pub expected: Option<Expected>,
}

impl Standing {
    /// One of which a strategy knows no more than who it is.
    pub fn of(replica: &Arc<Replica>) -> Self {
        Self { replica: Arc::clone(replica), rank: None, is_full: false, threshold: None, expected: None }
    }
}

/// What is expected of a request that goes to a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The share of its prompt that is found in the cache, 0 to 1.
    pub overlap: f64,
    /// What it costs, in seconds, with what it costs others, and with what keeps together what comes again: the least is chosen.
    pub cost: f64,
    /// Seconds to its first token.
    pub first_token: f64,
}
