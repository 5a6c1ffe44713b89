//! The files that some workloads need.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use super::Options;
use crate::sim::workload::{Base, Files, sharegpt};

/// Reads what the workloads need; nothing else.
pub(super) fn read(options: &Options) -> Result<Files> {
    let needs = |base: Base| options.workloads.iter().any(|workload| workload.base == base);
    let trace = |base: Base, name: &str| {
        let file = options.traces.join(name);
        needs(base)
            .then(|| text(&file).with_context(|| format!("the Mooncake traces are not in {}; see --traces", options.traces.display())))
    };
    let sharegpt = options.sharegpt.as_ref().map(|file| {
        let read = sharegpt::read(&text(file)?).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        anyhow::Ok(Arc::new(read))
    });
    Ok(Files {
        sharegpt: sharegpt.transpose()?,
        mooncake: trace(Base::Mooncake, "conversation_trace.jsonl").transpose()?.map(Arc::from),
        mooncake_synthetic: trace(Base::MooncakeSynthetic, "synthetic_trace.jsonl").transpose()?.map(Arc::from),
    })
}

fn text(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
