//! Requests of one key: how many in a second, and how many at once.
//!
//! Counted in memory for each key. The admin key and the node's own socket are not counted.

use crate::answer::Failure;
use branchbox_model::Code;
use branchbox_node::{Caller, KeyLimits, Node};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One key's count.
#[derive(Debug)]
struct Count {
    /// Requests that may come at once, in thousandths.
    left: u64,
    /// When that was so.
    at: Instant,
    in_flight: u32,
}

/// Every key's count. As many as there are keys.
#[derive(Debug, Default)]
pub(crate) struct Rates(Arc<Mutex<HashMap<String, Count>>>);

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight {
    rates: Arc<Mutex<HashMap<String, Count>>>,
    key: String,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut all = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.key) {
            count.in_flight = count.in_flight.saturating_sub(1);
        }
    }
}

impl Rates {
    /// Counts a request of a caller.
    ///
    /// # Errors
    /// `rate_limited` with the time after which there is room again; nothing ran then.
    pub(crate) fn count(&self, node: &Node, caller: &Caller) -> Result<Option<InFlight>, Failure> {
        match node.key_limits(caller) {
            None => Ok(None),
            Some(limits) => self.take(caller.account(), limits, Instant::now()).map(Some),
        }
    }

    fn take(&self, key: &str, limits: KeyLimits, now: Instant) -> Result<InFlight, Failure> {
        let (rate, burst) = (u64::from(limits.requests_per_second), u64::from(limits.burst) * 1000);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(key.to_owned()).or_insert(Count { left: burst, at: now, in_flight: 0 });
        // A thousandth of a request for each millisecond of a request a second.
        let ms = u64::try_from(now.saturating_duration_since(count.at).as_millis()).unwrap_or(u64::MAX);
        if ms > 0 {
            count.left = count.left.saturating_add(ms.saturating_mul(rate)).min(burst);
            count.at = now;
        }
        if count.in_flight >= limits.in_flight {
            let message = format!("{} requests of this key are being answered", limits.in_flight);
            return Err(limited(message, Duration::from_secs(1)));
        }
        let Some(left) = count.left.checked_sub(1000) else {
            let wait = Duration::from_millis((1000 - count.left).div_ceil(rate));
            return Err(limited(format!("more than {rate} requests a second"), wait));
        };
        count.left = left;
        count.in_flight += 1;
        Ok(InFlight { rates: Arc::clone(&self.0), key: key.to_owned() })
    }
}

fn limited(message: String, wait: Duration) -> Failure {
    let mut failure =
        Failure::new(Code::RateLimited, message, "send them one after the other, or wait and send it again");
    failure.0.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
    failure.0.retryable = Some(true);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: KeyLimits =
        KeyLimits { requests_per_second: 10, burst: 3, in_flight: 2, daily: None, sandboxes: None };

    #[test]
    fn a_burst_then_one_at_a_time() {
        let (rates, begin) = (Rates::default(), Instant::now());
        for _ in 0..3 {
            drop(rates.take("a", LIMITS, begin).expect("within the burst"));
        }
        let refused = rates.take("a", LIMITS, begin).expect_err("the burst is over");
        assert_eq!((refused.0.status, refused.0.retry_after_ms), (429, Some(100)));
        drop(rates.take("b", LIMITS, begin).expect("another key"));
        let later = begin + Duration::from_millis(100);
        drop(rates.take("a", LIMITS, later).expect("a tenth of a second later"));
        assert!(rates.take("a", LIMITS, later).is_err());
        let after = begin + Duration::from_secs(1000);
        for _ in 0..3 {
            drop(rates.take("a", LIMITS, after).expect("no more than the burst is saved"));
        }
        assert!(rates.take("a", LIMITS, after).is_err());
    }

    #[test]
    fn so_many_at_once() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let first = rates.take("a", LIMITS, begin).expect("one");
        let _second = rates.take("a", LIMITS, begin).expect("two");
        assert!(rates.take("a", LIMITS, begin).is_err());
        drop(first);
        assert!(rates.take("a", LIMITS, begin).is_ok(), "what was refused counts for nothing");
    }
}
