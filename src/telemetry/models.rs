//! Models as labels: those that the fleet lists, and of them at most as many as the configuration allows. What a client makes up has no series.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::fleet::{PoolName, Snapshot};

/// A model, as series know it. It is never used for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelLabel(pub(super) u32);

impl ModelLabel {
    /// The request names none, or went no further than its head.
    const NONE: Self = Self(0);
    /// It is not listed, or comes after too many others.
    const OTHER: Self = Self(1);
    const FIRST: u32 = 2;
}

/// What the labels are called that are not a model's. A model of that name has no series of its own.
const RESERVED: [&str; 2] = ["none", "other"];

/// The models that have a label.
pub(super) struct Models {
    most: usize,
    known: ArcSwap<Known>,
    /// The number of the next one. Held while the known ones change.
    next: Mutex<u32>,
}

#[derive(Clone, Default)]
struct Known {
    labels: HashMap<String, ModelLabel>,
    names: HashMap<ModelLabel, String>,
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
                match known.labels.get(model) {
                    Some(&label) => label,
                    // Without a lock: it may be so for each request.
                    None if known.labels.len() >= self.most || RESERVED.contains(&model.as_str()) => ModelLabel::OTHER,
                    None => self.add(model),
                }
            }
            (Some(_), _) => ModelLabel::OTHER,
        }
    }

    /// The label under which a request is counted now that had this one when it came: its model may have gone meanwhile.
    pub(super) fn current(&self, label: ModelLabel) -> ModelLabel {
        if label.0 < ModelLabel::FIRST || self.known.load().names.contains_key(&label) { label } else { ModelLabel::OTHER }
    }

    /// What it is called in metrics.
    pub(super) fn name(&self, label: ModelLabel) -> String {
        match label {
            ModelLabel::NONE => RESERVED[0].to_owned(),
            label => self.known.load().names.get(&label).map_or(RESERVED[1], String::as_str).to_owned(),
        }
    }

    /// Forgets those that nobody in the fleet lists any more. `gone` is told of each, before a model of that name can have a label again.
    pub(super) fn keep_those_of(&self, fleet: &Snapshot, mut gone: impl FnMut(ModelLabel, &str)) {
        if self.known.load().labels.keys().all(|model| fleet.lists(model)) {
            return;
        }
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.known.load_full();
        let mut kept = Known::clone(&before);
        kept.labels.retain(|model, _| fleet.lists(model));
        kept.names.retain(|_, model| fleet.lists(model));
        self.known.store(Arc::new(kept));
        for (model, &label) in before.labels.iter().filter(|(model, _)| !fleet.lists(model)) {
            gone(label, model);
        }
    }

    fn add(&self, model: &str) -> ModelLabel {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = Known::clone(&self.known.load());
        if let Some(&label) = known.labels.get(model) {
            return label;
        }
        if known.labels.len() >= self.most {
            return ModelLabel::OTHER;
        }
        let label = ModelLabel(*next);
        *next += 1;
        known.labels.insert(model.to_owned(), label);
        known.names.insert(label, model.to_owned());
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
        // Whatever a model is called, its series are not those of others.
        let (models, fleet) = (Models::new(2), super::tests::fleet(&["other", "none"]));
        assert_eq!(["other", "none"].map(|model| label(&models, &fleet, model)), [ModelLabel::OTHER; 2]);
    }

    #[test]
    fn the_label_of_a_model_that_has_gone_is_nobodys() {
        let (models, before) = (Models::new(2), fleet(&["a", "b"]));
        let (a, b) = (label(&models, &before, "a"), label(&models, &before, "b"));
        let gone = |fleet: &Snapshot| {
            let mut gone = Vec::new();
            models.keep_those_of(fleet, |label, name| gone.push((label, name.to_owned())));
            gone
        };
        assert!(gone(&before).is_empty());
        let after = fleet(&["b", "c"]);
        assert_eq!(gone(&after), [(a, "a".to_owned())]);
        assert_eq!([models.current(a), models.current(b)], [ModelLabel::OTHER, b]);
        let c = label(&models, &after, "c");
        assert!(c != a && c != b);
        assert_eq!([a, b, c].map(|label| models.name(label)), ["other", "b", "c"]);
    }
}
