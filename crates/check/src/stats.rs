//! Exact statistics of rare events: bounds of a rate, the difference of two rates, and how many
//! answers a bound needs.

/// The confidence of every bound and interval.
pub const CONFIDENCE: f64 = 0.95;

/// The natural logarithm of the gamma function (Lanczos's series with g = 7 and nine terms; Godfrey
/// 2001), to 1e-13 relative for positive `x`.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let series: f64 =
        TERMS[1..].iter().zip(1..).map(|(c, i)| c / (x + f64::from(i))).sum::<f64>() + TERMS[0];
    let t = x + 7.5;
    0.5 * (2.0 * core::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + series.ln()
}

/// The regularised incomplete beta function I_x(a, b), for positive `a` and `b`; by its continued
/// fraction (Abramowitz and Stegun 26.5.8), evaluated with Lentz's method.
pub fn beta_cdf(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on one side of the mean only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_cdf(1.0 - x, b, a);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    (front.exp() / a) * fraction(x, a, b)
}

fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away(1.0 + even * d);
        c = away(1.0 + even / c);
        value *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away(1.0 + odd * d);
        c = away(1.0 + odd / c);
        let change = d * c;
        value *= change;
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// The `x` with I_x(a, b) = `p`, by bisection to the last bit that matters.
fn beta_quantile(p: f64, a: f64, b: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if beta_cdf(middle, a, b) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The one-sided upper bound of a rate at [`CONFIDENCE`] (Clopper and Pearson 1934): 1 where
/// nothing was tried.
pub fn upper_bound(hits: u64, tries: u64) -> f64 {
    bound_at(hits, tries, CONFIDENCE)
}

fn bound_at(hits: u64, tries: u64, confidence: f64) -> f64 {
    if hits >= tries {
        return 1.0;
    }
    beta_quantile(confidence, hits as f64 + 1.0, (tries - hits) as f64)
}

/// The two-sided interval of a rate at [`CONFIDENCE`] (Clopper and Pearson 1934).
pub fn interval(hits: u64, tries: u64) -> (f64, f64) {
    let tail = 0.5 * (1.0 - CONFIDENCE);
    let low = if hits == 0 || tries == 0 {
        0.0
    } else {
        beta_quantile(tail, hits as f64, (tries.saturating_sub(hits)) as f64 + 1.0)
    };
    (low, bound_at(hits, tries, 1.0 - tail))
}

/// The one-sided lower bound of a rate at [`CONFIDENCE`].
pub fn lower_bound(hits: u64, tries: u64) -> f64 {
    if hits == 0 || tries == 0 {
        return 0.0;
    }
    beta_quantile(1.0 - CONFIDENCE, hits as f64, (tries.saturating_sub(hits)) as f64 + 1.0)
}

/// Fewest answers, `hits` of them bad, whose [`upper_bound`] is at most `bound`; `None` where
/// `bound` is not between 0 and 1.
pub fn tries_needed(hits: u64, bound: f64) -> Option<u64> {
    if !(bound > 0.0 && bound < 1.0) {
        return None;
    }
    let mut high = hits + 1;
    while upper_bound(hits, high) > bound {
        high = high.checked_mul(2).filter(|n| *n < 1 << 40)?;
    }
    let mut low = hits;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if upper_bound(hits, middle) > bound { low = middle } else { high = middle }
    }
    Some(high)
}

fn ln_choose(n: u64, k: u64) -> f64 {
    let (n, k) = (n as f64, k as f64);
    ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0)
}

/// Fisher's exact test, one-sided: how likely at least `hits` of `tries` would be, beside
/// `base_hits` of `base_tries`, if both had the same rate.
pub fn fisher_greater(hits: u64, tries: u64, base_hits: u64, base_tries: u64) -> f64 {
    if hits > tries || base_hits > base_tries {
        return 1.0;
    }
    let (all, bad) = (tries + base_tries, hits + base_hits);
    let whole = ln_choose(all, bad);
    let most = bad.min(tries);
    let terms = (hits..=most).filter(|k| bad - k <= base_tries);
    let p: f64 =
        terms.map(|k| (ln_choose(tries, k) + ln_choose(base_tries, bad - k) - whole).exp()).sum();
    p.min(1.0)
}

/// A probability as people read it: 0.042, 3.1e-7.
pub fn shown(p: f64) -> String {
    if p >= 0.001 || p == 0.0 { format!("{p:.3}") } else { format!("{p:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, known: f64) {
        assert!((found - known).abs() < 1e-9 * known.abs().max(1e-3), "{found} and {known}");
    }

    #[test]
    fn gamma_of_known_points() {
        near(ln_gamma(1.0) + 1.0, 1.0);
        near(ln_gamma(11.0), 3_628_800f64.ln());
        near(ln_gamma(0.5), core::f64::consts::PI.sqrt().ln());
    }

    /// I_x(a, b) for whole a and b is a binomial tail, which can be summed.
    #[test]
    fn incomplete_beta_is_a_binomial_tail() {
        for (n, k, x) in [(5u32, 2u32, 0.3), (40, 3, 0.05), (200, 190, 0.97), (1000, 1, 0.0005)] {
            let tail: f64 = (k..=n)
                .map(|i| {
                    let ln = ln_choose(n.into(), i.into())
                        + f64::from(i) * f64::ln(x)
                        + f64::from(n - i) * f64::ln_1p(-x);
                    ln.exp()
                })
                .sum();
            near(beta_cdf(x, f64::from(k), f64::from(n - k + 1)), tail);
        }
        near(beta_cdf(0.25, 0.5, 0.5), 1.0 / 3.0);
    }

    /// Closed forms for no hits and for all hits, and published intervals.
    #[test]
    fn bounds_of_known_rates() {
        for n in [10u64, 300, 3000] {
            near(upper_bound(0, n), 1.0 - 0.05f64.powf(1.0 / n as f64));
            near(lower_bound(n, n), 0.05f64.powf(1.0 / n as f64));
        }
        let (low, high) = interval(10, 100);
        assert!((low - 0.049_004_689).abs() < 1e-8, "{low}");
        assert!((high - 0.176_222_598).abs() < 1e-8, "{high}");
        assert_eq!(interval(0, 20).0, 0.0);
        near(interval(0, 20).1, 1.0 - 0.025f64.powf(0.05));
        assert_eq!((upper_bound(0, 0), upper_bound(7, 7), lower_bound(0, 9)), (1.0, 1.0, 0.0));
    }

    #[test]
    fn a_bound_says_how_many_answers_it_needs() {
        assert_eq!(tries_needed(0, 0.01), Some(299));
        assert_eq!(tries_needed(0, 0.001), Some(2995));
        for (hits, bound) in [(1, 0.01), (4, 0.02)] {
            let n = tries_needed(hits, bound).unwrap();
            assert!(upper_bound(hits, n) <= bound && upper_bound(hits, n - 1) > bound);
        }
        assert_eq!(tries_needed(0, 0.0), None);
        assert_eq!(tries_needed(0, f64::NAN), None);
        assert_eq!(tries_needed(0, 1.5), None);
    }

    /// Fisher's tea: 3 of 4 beside 1 of 4 is 17/70; 8 of 10 beside 1 of 10 is 0.00274.
    #[test]
    fn exact_test_of_known_tables() {
        near(fisher_greater(3, 4, 1, 4), 17.0 / 70.0);
        let terms = [(8u64, 1u64), (9, 0)]
            .map(|(a, b)| (ln_choose(10, a) + ln_choose(10, b) - ln_choose(20, 9)).exp());
        near(fisher_greater(8, 10, 1, 10), terms.iter().sum());
        near(fisher_greater(0, 10, 0, 10), 1.0);
        near(fisher_greater(0, 5, 3, 9), 1.0);
    }

    /// The bound holds as often as it says: over all outcomes of 25 tries at several true rates.
    #[test]
    fn bounds_cover_the_true_rate() {
        for rate in [0.02, 0.1, 0.3] {
            let covered: f64 = (0..=25u64)
                .filter(|k| upper_bound(*k, 25) >= rate)
                .map(|k| {
                    let ln = ln_choose(25, k) + k as f64 * f64::ln(rate);
                    (ln + (25 - k) as f64 * f64::ln_1p(-rate)).exp()
                })
                .sum();
            assert!(covered >= CONFIDENCE, "{rate}: {covered}");
        }
    }
}
