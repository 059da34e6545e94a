//! The engine with a log of byte ranges, objects and intents.

mod driver;
mod log;
mod power_cuts;
mod rules;
