//! One measured point of the chapter.

use crate::measure::Times;
use serde::Serialize;
use serde_json::{Map, Value};

/// One measured point.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) experiment: &'static str,
    /// The varied parameters and their values.
    pub(crate) params: Map<String, Value>,
    pub(crate) unit: &'static str,
    /// Mean of Outboard's runs over TCP, as the dissertation's.
    pub(crate) ours: f64,
    /// Mean of Outboard's runs over the default transport: QUIC, sealed.
    pub(crate) sealed: Option<f64>,
    /// Mean of the bare program's runs.
    pub(crate) bare: Option<f64>,
    /// The dissertation's figure for the same parameters.
    pub(crate) paper: Option<f64>,
    /// Runs of Outboard.
    pub(crate) runs: usize,
    /// Turns of Outboard and of the bare program.
    pub(crate) turns: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Median of the bare program's runs.
    pub(crate) bare_p50: Option<f64>,
}

/// The times of a point's series, run by run.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Series<'a> {
    pub(crate) ours: Option<&'a Times>,
    pub(crate) sealed: Option<&'a Times>,
    pub(crate) bare: Option<&'a Times>,
}

impl Row {
    /// Returns a row of times in microseconds.
    pub(crate) fn of_times(
        experiment: &'static str,
        params: Map<String, Value>,
        series: Series<'_>,
        paper: Option<f64>,
        turns: usize,
    ) -> Row {
        let empty = Times::default();
        let ours = series.ours.unwrap_or(&empty);
        Row {
            experiment,
            params,
            unit: "us",
            ours: ours.mean_us(),
            sealed: series.sealed.map(Times::mean_us),
            bare: series.bare.map(Times::mean_us),
            paper,
            runs: ours.count(),
            turns,
            p50: ours.percentile_us(0.5),
            p99: ours.percentile_us(0.99),
            bare_p50: series.bare.map(|bare| bare.percentile_us(0.5)),
        }
    }

    /// Returns the parameter as text, empty if there is none of this name.
    pub(crate) fn param(&self, name: &str) -> String {
        match self.params.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }

    /// Returns the half of section 6.8 that the row belongs to. Only `stages` has halves.
    pub(crate) fn section(&self) -> String {
        if self.experiment == "stages" { self.param("part") } else { String::new() }
    }

    /// Returns the parameter as a number, 0 if it is none.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.params.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Returns Outboard's median divided by the bare program's.
    pub(crate) fn to_bare(&self) -> Option<f64> {
        self.bare_p50.map(|bare| self.p50 / bare)
    }

    /// Returns how many times better than the dissertation's figure this one is.
    pub(crate) fn gain(&self) -> Option<f64> {
        let paper = self.paper?;
        Some(if self.unit == "MB/s" { self.ours / paper } else { paper / self.ours })
    }
}

/// Parameters of a row: `params! { "bytes": 100, "link": "pipe" }`.
macro_rules! params {
    ($($name:literal: $value:expr),* $(,)?) => {
        serde_json::Map::from_iter([$(($name.to_string(), serde_json::json!($value))),*])
    };
}
pub(crate) use params;
