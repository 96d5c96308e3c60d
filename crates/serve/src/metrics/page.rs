//! Writing series of declared metrics.

use core::fmt;
use lockstep_flow::Durations;
use lockstep_flow::metrics::{Kind, Metric, find};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::borrow::Cow;

/// One series: its labels and its value.
pub type Series<'a> = (Vec<(&'static str, Cow<'a, str>)>, f64);

/// A metric without labels.
pub fn one<'a>(value: impl Into<f64>) -> [Series<'a>; 1] {
    [(Vec::new(), value.into())]
}

/// A series with one label.
pub fn by<'a>(label: &'static str, of: impl Into<Cow<'a, str>>, value: f64) -> Series<'a> {
    (vec![(label, of.into())], value)
}

/// The page while it is written.
pub struct Page<'a>(DescriptorEncoder<'a>);

fn declared(name: &str) -> &'static Metric {
    find(name).unwrap_or_else(|| panic!("{name} is not declared in lockstep_flow::metrics"))
}

fn names(metric: &Metric) -> impl Iterator<Item = &'static str> {
    core::iter::once(metric.name).chain(metric.aliases.iter().copied())
}

impl<'a> Page<'a> {
    pub fn new(encoder: DescriptorEncoder<'a>) -> Page<'a> {
        Page(encoder)
    }

    /// Writes a counter or a gauge under each of its declared names; nothing where it has no
    /// series.
    pub fn put(&mut self, name: &str, series: &[Series<'_>]) -> fmt::Result {
        let metric = declared(name);
        for name in names(metric).filter(|_| !series.is_empty()) {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => unreachable!("histograms are put as durations"),
            };
            let mut rows = self.0.encode_descriptor(name, metric.help, None, kind)?;
            for (labels, value) in series {
                debug_assert!(labels.iter().map(|l| &l.0).eq(metric.labels), "{name}");
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(k, v)| (*k, v.as_ref())).collect();
                let row = rows.encode_family(&labels)?;
                match metric.kind {
                    Kind::Counter => ConstCounter::new(*value as u64).encode(row)?,
                    _ => ConstGauge::new(*value).encode(row)?,
                }
            }
        }
        Ok(())
    }

    /// Writes histograms, one for each value of `label`.
    pub fn put_durations(
        &mut self,
        name: &str,
        label: &str,
        series: &[(&str, &Durations)],
    ) -> fmt::Result {
        let metric = declared(name);
        for name in names(metric) {
            let kind = MetricType::Histogram;
            let mut rows = self.0.encode_descriptor(name, metric.help, None, kind)?;
            for (value, durations) in series {
                let bins: Vec<(f64, u64)> = durations.bins().collect();
                let labels = [(label, *value)];
                let mut row = rows.encode_family(&labels)?;
                let (sum, count) = (durations.sum_secs(), durations.count());
                row.encode_histogram::<NoLabelSet>(sum, count, &bins, None)?;
            }
        }
        Ok(())
    }
}
