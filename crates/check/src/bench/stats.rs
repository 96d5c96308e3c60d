//! Means, percentiles and intervals.

use serde::{Deserialize, Serialize};

/// What is said of a set of times, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the whole set.
    pub std: f64,
    /// Percentiles 50, 90, 95, 99 and the largest.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
    /// 51 quantiles from the smallest to the largest, for a curve.
    pub quantiles: Vec<f64>,
}

/// Steps of [`Summary::quantiles`].
const QUANTILE_STEPS: usize = 50;

impl Summary {
    /// Of `values`, which are sorted in the course of it. Of none, all zero.
    pub fn of(values: &mut [f64]) -> Summary {
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        if count == 0 {
            return Summary::default();
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64;
        let at = |share| quantile(values, share);
        let step = |i| at(i as f64 / QUANTILE_STEPS as f64);
        Summary {
            count: count as u64,
            mean,
            std: variance.sqrt(),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: values[count - 1],
            quantiles: (0..=QUANTILE_STEPS).map(step).collect(),
        }
    }
}

/// A quantile of sorted values, linear between neighbours (numpy's default).
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// A mean with its 95% interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Measurements behind it.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half the width of the two-sided 95% interval by Student's t; `None` of fewer than two.
    pub half_width: Option<f64>,
}

impl Interval {
    /// Of independent measurements.
    pub fn of(values: &[f64]) -> Interval {
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n.max(1) as f64;
        let half_width = (n >= 2).then(|| {
            let sum: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            let error = (sum / (n - 1) as f64 / n as f64).sqrt();
            t_95(n - 1) * error
        });
        Interval { count: n as u64, mean, half_width }
    }

    /// Half the width as a share of the mean; infinite where there is none.
    pub fn relative(&self) -> f64 {
        match self.half_width {
            Some(half) if self.mean > 0.0 => half / self.mean,
            _ => f64::INFINITY,
        }
    }
}

/// The ratio of two servers' throughputs over pairs of runs: geometric mean with a 95% interval,
/// from the logarithms, so that B over A is one over A over B.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Pairs.
    pub count: u64,
    /// Geometric mean of the second over the first.
    pub ratio: f64,
    /// Lower end; `None` of fewer than two pairs.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl Ratio {
    /// Of ratios, all above zero.
    pub fn of(ratios: &[f64]) -> Ratio {
        let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
        let interval = Interval::of(&logs);
        let end = |sign: f64| interval.half_width.map(|h| (interval.mean + sign * h).exp());
        Ratio { count: interval.count, ratio: interval.mean.exp(), low: end(-1.0), high: end(1.0) }
    }

    /// Half the width of the interval as a share of the ratio.
    pub fn relative(&self) -> f64 {
        match (self.low, self.high) {
            (Some(low), Some(high)) => (high - low) / 2.0 / self.ratio,
            _ => f64::INFINITY,
        }
    }
}

/// The 97.5% quantile of Student's t with `freedom` degrees of freedom (tables of the
/// distribution; beyond 30, Cornish and Fisher's expansion, right to four digits there).
fn t_95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010,
        2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739,
        2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    ];
    const Z: f64 = 1.959_964;
    match freedom {
        0 => f64::INFINITY,
        1..=30 => TABLE[freedom - 1],
        _ => {
            let n = freedom as f64;
            let first = (Z.powi(3) + Z) / (4.0 * n);
            let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * n * n);
            Z + first + second
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([1, 2, 3, 4], [50, 90, 99]) is [2.5, 3.7, 3.97].
        let s = Summary::of(&mut [4.0, 2.0, 1.0, 3.0]);
        assert!((s.p50 - 2.5).abs() < 1e-12 && (s.p90 - 3.7).abs() < 1e-12);
        assert!((s.p99 - 3.97).abs() < 1e-12 && s.max == 4.0 && s.mean == 2.5);
        assert!((s.std - 1.118_033_988).abs() < 1e-6);
        assert_eq!(Summary::of(&mut []).count, 0);
        assert_eq!(Summary::of(&mut [7.0]).p99, 7.0);
    }

    #[test]
    fn intervals_are_students() {
        // scipy.stats.t.interval(0.95, 2, 10, 1 / 3 ** 0.5) is (7.516, 12.484).
        let i = Interval::of(&[9.0, 10.0, 11.0]);
        assert!((i.half_width.unwrap() - 2.4841).abs() < 1e-3);
        assert_eq!(Interval::of(&[1.0]).relative(), f64::INFINITY);
        assert!((t_95(31) - 2.0395).abs() < 1e-4 && (t_95(100) - 1.9840).abs() < 1e-4);
    }

    #[test]
    fn ratios_turn_around() {
        let there = Ratio::of(&[2.0, 2.2, 1.9]);
        let back = Ratio::of(&[1.0 / 2.0, 1.0 / 2.2, 1.0 / 1.9]);
        assert!((there.ratio * back.ratio - 1.0).abs() < 1e-12);
        assert!((there.low.unwrap() * back.high.unwrap() - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn quantiles_stay_inside_and_rise(mut v in proptest::collection::vec(0.0..1e6f64, 1..50)) {
            let s = Summary::of(&mut v);
            prop_assert!(s.quantiles.windows(2).all(|w| w[0] <= w[1]));
            prop_assert!(s.quantiles[0] == v[0] && s.max == v[v.len() - 1]);
            prop_assert!(s.p50 <= s.p90 && s.p90 <= s.p99 && s.p99 <= s.max);
        }
    }
}
