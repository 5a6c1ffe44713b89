//! Models as labels: those that the fleet lists, and of them at most as many as the configuration allows. What a client makes up has no series.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::fleet::{PoolName, Snapshot};

/// A model, as series know it. It is never used for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLabel(pub(super) u32);

impl ModelLabel {
    /// The request names none, or went no further than its head.
    const NONE: Self = Self(0);
    /// It is not listed, or comes after too many others.
    const OTHER: Self = Self(1);
    const FIRST: u32 = 2;
}

/// The models that have a label.
pub(super) struct Models {
    most: usize,
    known: ArcSwap<HashMap<String, ModelLabel>>,
    /// The number of the next one. Held while the known ones change.
    next: Mutex<u32>,
}

impl Models {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: ArcSwap::default(), next: Mutex::new(ModelLabel::FIRST) }
    }

    /// The label of the model that a request named, which goes to that pool, if to any.
    pub(super) fn label(&self, asked: Option<&str>, pool: Option<&PoolName>) -> ModelLabel {
        match (asked, pool) {
            (None, _) => ModelLabel::NONE,
            (Some(_), Some(PoolName::Model(model))) => {
                let known = self.known.load();
                match known.get(model) {
                    Some(&label) => label,
                    // Without a lock: it may be so for each request.
                    None if known.len() >= self.most => ModelLabel::OTHER,
                    None => self.add(model),
                }
            }
            (Some(_), _) => ModelLabel::OTHER,
        }
    }

    /// What it is called in metrics.
    pub(super) fn name(&self, label: ModelLabel) -> String {
        match label {
            ModelLabel::NONE => "none".to_owned(),
            label => {
                let known = self.known.load();
                known.iter().find(|(_, other)| **other == label).map_or("other", |(name, _)| name.as_str()).to_owned()
            }
        }
    }

    /// Forgets those that nobody in the fleet lists any more, and returns them.
    pub(super) fn keep_those_of(&self, fleet: &Snapshot) -> Vec<(ModelLabel, String)> {
        let is_listed = |model: &String| fleet.lists(model);
        if self.known.load().keys().all(is_listed) {
            return Vec::new();
        }
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, gone): (HashMap<_, _>, HashMap<_, _>) =
            HashMap::clone(&self.known.load()).into_iter().partition(|(model, _)| is_listed(model));
        self.known.store(Arc::new(kept));
        gone.into_iter().map(|(model, label)| (label, model)).collect()
    }

    fn add(&self, model: &str) -> ModelLabel {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::clone(&self.known.load());
        if let Some(&label) = known.get(model) {
            return label;
        }
        if known.len() >= self.most {
            return ModelLabel::OTHER;
        }
        let label = ModelLabel(*next);
        *next += 1;
        known.insert(model.to_owned(), label);
        self.known.store(Arc::new(known));
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::units::Weight;

    fn fleet(models: &[&str]) -> Snapshot {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        let spec = ReplicaSpec { name: "a".into(), authority: "a".into(), weight: Weight::clamped(1), models, drain: false };
        Fleet::new(vec![spec], health::Settings::default(), 0).snapshot()
    }

    fn label(models: &Models, fleet: &Snapshot, model: &str) -> ModelLabel {
        models.label(Some(model), fleet.pool(Some(model)).map(|pool| pool.name()))
    }

    #[test]
    fn listed_models_have_labels_and_all_others_share_one() {
        let (models, fleet) = (Models::new(2), fleet(&["a", "b", "c"]));
        let named = |model: &str| models.name(label(&models, &fleet, model));
        assert_eq!(["a", "made up", "b", "a", "c", "b"].map(named), ["a", "other", "b", "a", "other", "b"]);
        assert_eq!(models.name(models.label(None, Some(&PoolName::All))), "none");
    }

    #[test]
    fn the_label_of_a_model_that_has_gone_is_nobodys() {
        let (models, before) = (Models::new(2), fleet(&["a", "b"]));
        let (a, b) = (label(&models, &before, "a"), label(&models, &before, "b"));
        assert!(models.keep_those_of(&before).is_empty());
        let after = fleet(&["b", "c"]);
        assert_eq!(models.keep_those_of(&after), [(a, "a".to_owned())]);
        let c = label(&models, &after, "c");
        assert!(c != a && c != b);
        assert_eq!([a, b, c].map(|label| models.name(label)), ["other", "b", "c"]);
    }
}
