//! What engines say of themselves: their pages of metrics, what is read out of these, and the latest of it for each replica.
//!
//! Pure: it asks nobody. `scrape` brings the pages, with the time at which it asked for them.

mod exposition;
mod reading;
mod readings;

pub use reading::Reading;
pub use readings::{EngineReadings, Growth, Latest};
