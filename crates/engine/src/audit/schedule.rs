//! When something is audited, and how many bytes a second that may take.

use lockstep_flow::{BucketAudit, Micros};

/// A bucket that steps is audited this often, as long as that takes one part in [`REST`] of the
/// time, and at least as often as [`BUCKET_LATEST`].
const BUCKET_EVERY: Micros = Micros::from_millis(60_000);
const BUCKET_LATEST: Micros = Micros::from_millis(600_000);

/// After a twin that was run for the sake of a bucket's minute, none is for this many times as long
/// as it took. A twin costs a step: one a minute is 0.1% where a step takes 60 ms, and 2% where it
/// takes 1.2 s (a long chunk of a prompt), for each bucket that is in use.
const REST: u64 = 200;

/// Which steps are audited.
#[derive(Debug)]
pub struct Schedule {
    /// One step in this many; 0 is off.
    rate: u32,
    until: u32,
    /// The step chosen last was chosen because its bucket's minute was over.
    for_minute: bool,
    /// No minute is looked at before this.
    rest_until: Micros,
    /// By bucket: when its minute began.
    minute: Vec<Micros>,
    buckets: Vec<BucketAudit>,
}

impl Schedule {
    /// A schedule of one step in `rate` over `buckets` buckets.
    pub fn new(rate: u32, buckets: usize) -> Schedule {
        let (minute, audits) = (vec![Micros(0); buckets], vec![BucketAudit::default(); buckets]);
        let (for_minute, rest_until) = (false, Micros(0));
        Schedule { rate, until: rate, for_minute, rest_until, minute, buckets: audits }
    }

    /// Decides, before a step runs, whether it is audited.
    pub fn choose(&mut self, bucket: usize, now: Micros) -> bool {
        if self.rate == 0 {
            return false;
        }
        self.until -= 1;
        if self.minute[bucket] == Micros(0) {
            // The minute of a bucket starts with its first step: an audit right there would
            // double the time to the first token.
            self.minute[bucket] = now;
        }
        let waited = now.since(self.minute[bucket]);
        let rested = now >= self.rest_until || waited >= BUCKET_LATEST;
        let stale = waited >= BUCKET_EVERY && rested;
        let chosen = self.until == 0 || stale;
        if chosen {
            self.for_minute = self.until > 0;
            self.until = self.rate;
            self.minute[bucket] = now;
        }
        chosen
    }

    /// The step that was chosen does not run: the next one is chosen.
    pub fn put_off(&mut self) {
        self.until = 1;
    }

    /// A step of a bucket has been audited, at `now`; its twin took `cost`.
    pub fn audited(&mut self, bucket: usize, now: Micros, cost: Micros, differed: bool) {
        if self.for_minute {
            self.rest_until = self.rest_until.max(Micros(now.0 + REST * cost.0));
        }
        let audit = &mut self.buckets[bucket];
        audit.audits += 1;
        audit.mismatches += u64::from(differed);
        audit.last = Some(now);
    }

    /// What has been audited, by bucket.
    pub fn buckets(&self) -> &[BucketAudit] {
        &self.buckets
    }
}

/// So many bytes a second, saved up for a tenth of a second at most.
#[derive(Default, Debug)]
pub struct Allowance {
    /// Millionths of a byte: turns of some microseconds each count too.
    saved: u64,
    at: Micros,
}

impl Allowance {
    /// Spends `bytes` where `per_second` has left room for them by `now`.
    pub fn take(&mut self, bytes: u64, per_second: u64, now: Micros) -> bool {
        let waited = now.since(self.at).0.min(SECOND);
        self.at = now;
        let price = bytes * SECOND;
        let most = price + per_second * SECOND / 10;
        self.saved = (self.saved + waited * per_second).min(most);
        let there = self.saved >= price;
        if there {
            self.saved -= price;
        }
        there
    }
}

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_in_so_many_and_each_bucket_once_a_minute() {
        let mut schedule = Schedule::new(10, 2);
        let mut chosen = [0; 2];
        // A busy bucket, and one that steps every two minutes.
        for second in 1..=600u64 {
            let now = Micros(second * SECOND);
            for _ in 0..10 {
                if schedule.choose(0, now) {
                    chosen[0] += 1;
                    schedule.audited(0, now, Micros(0), false);
                }
            }
            if second % 120 == 1 && schedule.choose(1, now) {
                chosen[1] += 1;
                schedule.audited(1, now, Micros(0), true);
            }
        }
        assert!((595..=600).contains(&chosen[0]), "{chosen:?}");
        assert_eq!(chosen[1], 4, "each but its first step");
        let last = Some(Micros(481 * SECOND));
        assert_eq!(schedule.buckets()[1], BucketAudit { audits: 4, mismatches: 4, last });
        assert!((0..100).all(|_| !Schedule::new(0, 1).choose(0, Micros(SECOND))), "0 is off");
        let mut always = Schedule::new(1, 1);
        assert!((0..100).all(|_| always.choose(0, Micros(5))), "1 is every step");
    }

    /// Twenty buckets that step in turns, a twin of 100 ms each: once a minute would be 3% of the
    /// time.
    #[test]
    fn minutes_take_half_a_percent_of_the_time() {
        let (cost, hour) = (Micros::from_millis(100), 3600 * SECOND);
        let mut schedule = Schedule::new(1_000_000, 20);
        let mut spent = 0;
        for (i, at) in (1..=hour).step_by(SECOND as usize / 4).enumerate() {
            let (bucket, now) = (i % 20, Micros(at));
            if schedule.choose(bucket, now) {
                schedule.audited(bucket, now, cost, false);
                spent += cost.0;
            }
        }
        assert!((hour / 230..=hour / 195).contains(&spent), "{spent} of {hour} us");
        let least = schedule.buckets().iter().map(|b| b.audits).min();
        assert!(least >= Some(8), "{least:?} audits in an hour");
    }

    #[test]
    fn a_bucket_of_slow_twins_is_audited_every_ten_minutes_all_the_same() {
        let mut schedule = Schedule::new(1_000_000, 2);
        let mut audits = [0; 2];
        for second in 1..=3600 {
            let now = Micros(second * SECOND);
            for (bucket, audits) in audits.iter_mut().enumerate() {
                if schedule.choose(bucket, now) {
                    // The first takes all the time that there is for this, and far more.
                    schedule.audited(bucket, now, Micros([30, 1][bucket] * SECOND), false);
                    *audits += 1;
                }
            }
        }
        assert_eq!(audits, [6, 5], "the minutes of both, and every ten minutes");
    }

    #[test]
    fn an_allowance_is_a_rate() {
        let mut allowance = Allowance::default();
        let taken = |allowance: &mut Allowance, every: u64| {
            let of = |t: u64| allowance.take(700, 4000, Micros(t * every));
            (0..10 * SECOND / every).map(of).filter(|t| *t).count()
        };
        for every in [100, 1000, 30_000] {
            let n = taken(&mut allowance, every);
            assert!((55..=58).contains(&n), "{n} of 700 bytes in ten seconds of 4000 each");
            allowance = Allowance::default();
        }
    }
}
