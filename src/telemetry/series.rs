//! Makes series, and knows them all: so what is published can be held against what is documented.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// All series of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Their name. A histogram's own series have it as the beginning of theirs.
    pub name: String,
    /// What is counted.
    pub help: String,
    /// By what they are told apart.
    pub labels: Vec<String>,
}

/// What is published.
#[derive(Default)]
pub(super) struct Series {
    pub(super) registry: Registry,
    pub(super) families: Vec<Family>,
}

impl Series {
    pub(super) fn add<C: Collector + Clone + 'static>(&mut self, collector: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        self.tell(&collector);
        Ok(collector)
    }

    /// The same for what cannot be asked for its values.
    pub(super) fn add_foreign(&mut self, collector: impl Collector + 'static) -> prometheus::Result<()> {
        self.tell(&collector);
        self.registry.register(Box::new(collector))
    }

    fn tell(&mut self, collector: &impl Collector) {
        self.families.extend(collector.desc().into_iter().map(|family| Family {
            name: family.fq_name.clone(),
            help: family.help.clone(),
            labels: family.variable_labels.clone(),
        }));
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn seconds_by(&mut self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<CounterVec> {
        self.add(CounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    pub(super) fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn number(&mut self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.add(Gauge::new(name, help)?)
    }

    pub(super) fn numbers(&mut self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub(super) fn histograms(&mut self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> prometheus::Result<HistogramVec> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }
}
