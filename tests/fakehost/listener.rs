//! The lock of a timer's listener: of several hosts with the same id, one fires.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use uuid::Uuid;

use super::timers::{LockName, Timers};
use super::{LISTENER_LOCK_PERIOD, LISTENER_LOCK_POLLING_INTERVAL};

/// How a host holds the locks of its timers: `singleton` in `host.json`.
#[derive(Clone, Copy, Debug)]
pub struct Singleton {
    /// `listenerLockPeriod`: length of the lease, which is renewed after half of it.
    pub period: Duration,
    /// `listenerLockRecoveryPollingInterval`: how often a host requests a lock that another host holds.
    pub polling_interval: Duration,
}

impl Default for Singleton {
    fn default() -> Self {
        Self { period: LISTENER_LOCK_PERIOD, polling_interval: LISTENER_LOCK_POLLING_INTERVAL }
    }
}

/// A timer's listener: it polls for its lock and renews it. When it is dropped, the lock remains until its
/// lease expires.
#[derive(Debug)]
pub(super) struct Listener {
    name: LockName,
    holder: Uuid,
    timers: Timers,
    held: watch::Receiver<bool>,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    pub(super) fn start(timers: &Timers, name: LockName, singleton: Singleton) -> Self {
        let Singleton { period, polling_interval } = singleton;
        let holder = Uuid::new_v4();
        let (sender, held) = watch::channel(false);
        let (account, lock) = (timers.clone(), name.clone());
        let keep = async move {
            loop {
                let is_held = account.lock(&lock, holder, period);
                sender.send_replace(is_held);
                sleep(if is_held { period / 2 } else { polling_interval }).await;
            }
        };
        let task = tokio::spawn(keep).abort_handle();
        Self { name, holder, timers: timers.clone(), held, task }
    }

    /// Returns a channel with whether it holds its lock. The channel closes with the listener.
    pub(super) fn held(&self) -> watch::Receiver<bool> {
        self.held.clone()
    }

    /// Stops it and releases the lock, like a host that stops in time.
    pub(super) fn release(self) {
        self.task.abort();
        self.timers.unlock(&self.name, self.holder);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn listener(timers: &Timers, host: &str, singleton: Singleton) -> Listener {
        Listener::start(timers, (host.to_owned(), "orders".to_owned()), singleton)
    }

    /// Returns how long after `since` a listener acquires its lock.
    async fn locked_after(listener: &Listener, since: Instant) -> Duration {
        listener.held().wait_for(|held| *held).await.unwrap();
        since.elapsed()
    }

    /// A host is killed 10 s after its last renewal; another one is started 1 s later.
    async fn silence_after_a_kill(period: u64, polling_interval: u64) -> u64 {
        let [period, polling_interval] = [period, polling_interval].map(Duration::from_secs);
        let singleton = Singleton { period, polling_interval };
        let timers = Timers::default();
        let killed = listener(&timers, "a", singleton);
        locked_after(&killed, Instant::now()).await;
        sleep(2 * period + Duration::from_secs(5)).await;
        let killed_at = Instant::now();
        drop(killed);
        sleep(Duration::from_secs(1)).await;
        let next = listener(&timers, "a", singleton);
        locked_after(&next, killed_at).await.as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_hosts_lock_is_free_at_the_first_poll_after_its_lease_expires() {
        assert_eq!(silence_after_a_kill(60, 60).await, 61);
        assert_eq!(silence_after_a_kill(60, 15).await, 61);
        assert_eq!(silence_after_a_kill(30, 15).await, 31);
        assert_eq!(silence_after_a_kill(15, 15).await, 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_living_host_keeps_its_lock_and_a_stopped_one_releases_it() {
        let (timers, singleton) = (Timers::default(), Singleton::default());
        let first = listener(&timers, "a", singleton);
        locked_after(&first, Instant::now()).await;
        let (standby, other) =
            (listener(&timers, "a", singleton), listener(&timers, "b", singleton));
        locked_after(&other, Instant::now()).await;
        sleep(10 * singleton.period + Duration::from_secs(1)).await;
        assert!(*first.held().borrow() && !*standby.held().borrow());
        let released_at = Instant::now();
        first.release();
        assert_eq!(locked_after(&standby, released_at).await, Duration::from_secs(59));
    }

    #[tokio::test(start_paused = true)]
    async fn without_storage_no_lock_is_granted_or_renewed() {
        let (timers, singleton) = (Timers::default(), Singleton::default());
        timers.set_away(true);
        let since = Instant::now();
        let first = listener(&timers, "a", singleton);
        sleep(Duration::from_secs(1)).await;
        timers.set_away(false);
        assert_eq!(locked_after(&first, since).await, singleton.polling_interval);
        timers.set_away(true);
        first.held().wait_for(|held| !held).await.unwrap();
        assert_eq!(since.elapsed(), singleton.polling_interval + singleton.period / 2);
    }
}
