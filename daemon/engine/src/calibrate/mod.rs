//! Calibration: from what measuring attention saw of real prompts to the scale tables of a checkpoint.

pub mod advise;
pub mod bins;
pub mod check;
pub mod curve;
pub mod grid;
pub mod ladder;
pub mod outcome;
pub mod record;
pub mod run;
pub mod settle;
pub mod smooth;
pub mod solve;
