//! The story of a request that would be, in sentences: what it is, what it is placed by, who is asked, who takes it, and who would if that failed.
//!
//! It decides nothing; every figure in it is one of the explanation's.

use super::{Explained, Outcome};

/// Adds the sentences.
pub(super) fn tell(explained: Explained) -> Explained {
    let mut steps = vec![surface(&explained)];
    steps.extend(model(&explained));
    if explained.pool.is_some() {
        steps.extend(identifier(&explained));
        steps.extend(key(&explained));
        steps.extend(order(&explained));
    }
    steps.push(outcome(&explained));
    steps.extend(next(&explained));
    Explained { steps, ..explained }
}

fn surface(explained: &Explained) -> String {
    let (path, surface) = (&explained.path, explained.surface);
    match explained.prompt_bytes {
        Some(bytes) => format!("{path} is the surface {surface}, which is placed by its prompt; the prompt has {}.", count(bytes, "byte")),
        None => format!("{path} is the surface {surface}, which computes no prompt that the router knows of."),
    }
}

fn model(explained: &Explained) -> Option<String> {
    let members = explained.candidates.len();
    let pool = explained.pool.as_ref()?;
    let named = match &explained.model {
        Some(model) => format!("It names the model {model:?}"),
        None => "It names no model".to_owned(),
    };
    Some(format!("{named}, so it can go to the pool {pool}, which has {}.", count(members, "replica")))
}

fn identifier(explained: &Explained) -> Option<String> {
    let place = match explained.identifier? {
        "header" => "its header",
        _ => "its prompt_cache_key",
    };
    Some(format!("The identifier in {place} is a part of its key: prompts with another one are placed independently."))
}

fn key(explained: &Explained) -> Vec<String> {
    if !["prefix_aware", "cache_aware"].contains(&explained.strategy) {
        return vec![format!("The strategy {} does not look at the prompt.", explained.strategy)];
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut told = Vec::new();
    for boundary in &explained.boundaries {
        let depth = boundary.depth;
        let share = boundary.share.zip(boundary.limit);
        let share = share.map_or(String::new(), |(share, limit)| {
            // A share that no key can have: where there are too few replicas or requests for any to be hot.
            let hot = if limit < 1.0 { format!(" (hot above {})", percent(limit)) } else { String::new() };
            format!(" begin {} of recent requests, this one included{hot}", percent(share))
        });
        match (boundary.is_chosen, boundary.is_hot) {
            (true, _) => {
                let how = if share.is_empty() { "make" } else { ": they make" };
                told.push(format!("Its first {}{share}{how} its key.", count(depth as usize, "character")));
                break;
            }
            (false, _) => told.push(format!(
                "Its first {}{share}: too many to place it by, so more of it is looked at.",
                count(depth as usize, "character")
            )),
        }
    }
    match (&explained.key, explained.seen) {
        (None, _) if explained.prompt_bytes.is_some() => told.push("It has no text to make a key of, so it goes by load.".to_owned()),
        (Some(key), seen) => {
            let seen = match seen {
                Some("known") => ", which was asked for of late",
                Some(_) => ", which was not asked for of late",
                None => "",
            };
            told.push(format!("The key is {key}{seen}."));
        }
        _ => {}
    }
    told
}

fn order(explained: &Explained) -> Vec<String> {
    /// More names than these say nothing.
    const MOST: usize = 5;
    let ranked: Vec<&str> = explained.candidates.iter().filter(|one| one.rank.is_some()).map(|one| one.name.as_str()).collect();
    let mut told = Vec::new();
    if let [first, ..] = ranked.as_slice() {
        let more = if ranked.len() > MOST { " and so on" } else { "" };
        told.push(format!(
            "In the key's order the replicas are {}{more}.",
            ranked.iter().take(MOST).copied().collect::<Vec<_>>().join(", ")
        ));
        let home = explained.candidates.iter().find(|one| one.name == *first);
        if let Some((home, threshold)) = home.and_then(|home| Some((home, home.threshold?))) {
            let (name, outstanding) = (&home.name, home.outstanding);
            let gate = if home.gate == Some("open") { "is open" } else { "is closed" };
            told.push(format!(
                "{name} has {} in flight; its gate closes at {threshold}, and so {gate}.",
                count(outstanding as usize, "request")
            ));
        }
        if let Some(overlap) = home.and_then(|home| home.overlap) {
            let costs = explained.candidates.iter().filter_map(|one| Some((one, one.cost_seconds?)));
            if let Some((best, cost)) = costs.min_by(|one, other| one.1.total_cmp(&other.1)) {
                let (name, share) = (&best.name, best.overlap.unwrap_or_default() * 100.0);
                told.push(format!(
                    "{first} is expected to hold {:.0} % of the prompt. {name} costs least, {cost:.3} s, and is expected to hold {share:.0} %.",
                    overlap * 100.0
                ));
            }
        }
    }
    let away: Vec<String> = explained
        .candidates
        .iter()
        .filter(|one| !one.is_eligible)
        .map(|one| {
            let state = one.state.unwrap_or("gone");
            format!("{} ({state})", one.name)
        })
        .collect();
    if !away.is_empty() {
        let more = if away.len() > MOST { " and others" } else { "" };
        told.push(format!("It cannot go to {}{more} now.", away.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ")));
    }
    told
}

fn outcome(explained: &Explained) -> String {
    let replica = explained.replica.as_deref().unwrap_or("a replica");
    match explained.outcome {
        Outcome::Answered => "The router answers it itself.".to_owned(),
        Outcome::Refused => format!("Its client gets an error: {}.", explained.error.unwrap_or("no_replica")),
        Outcome::Waits => "There is no room for it, so it waits (max_outstanding, max_outstanding_total).".to_owned(),
        Outcome::Held => format!("{replica} would take it and has enough to compute, so it is held back here for a moment (hold)."),
        Outcome::Sent if explained.by_chance => match explained.strategy {
            "random" => "Chance decides which one takes it, by weight.".to_owned(),
            "round_robin" => "The one whose turn it is takes it.".to_owned(),
            _ => "Several are as little loaded; one of them takes it, by chance.".to_owned(),
        },
        Outcome::Sent => {
            let why = match explained.reason {
                Some("home") => "as its key belongs there",
                Some("cached") => "as it holds more of the prompt than the key's first choice",
                Some("overflow") if explained.strategy == "cache_aware" => "as that is sooner than waiting for the key's first choice",
                Some("overflow") if explained.candidates.first().is_some_and(|home| home.is_full) => {
                    "as its home is full (max_outstanding)"
                }
                Some("overflow") => "as the gate of its home is closed",
                Some("failover") => "as its home cannot be used now",
                Some("no_key") => "as it has no key, and that one has the least to do",
                _ => "as that one has the least to do",
            };
            format!("It goes to {replica}, {why}.")
        }
    }
}

fn next(explained: &Explained) -> Option<String> {
    let names: Vec<&str> = explained.next.iter().map(|next| next.replica.as_str()).collect();
    (!names.is_empty()).then(|| format!("Were that to fail before its first byte, {} would be tried next.", names.join(", then ")))
}

fn count(number: usize, of: &str) -> String {
    if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") }
}
