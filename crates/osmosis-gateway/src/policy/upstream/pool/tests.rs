//! The queue under any order of comings and goings.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use proptest::prelude::*;

use super::super::{BreakerSettings, EndpointOptions, HttpClients, UpstreamOptions};
use super::*;

#[derive(Debug, Clone)]
enum Event {
    /// A call comes, and would rather go there.
    Comes(Option<usize>),
    /// Who waits goes away.
    GivesUp(usize),
    /// A call under way ends like this.
    Ends(usize, End),
}

#[derive(Debug, Clone, Copy)]
enum End {
    Well,
    Overloaded,
    HungUp,
}

fn event() -> impl Strategy<Value = Event> {
    let end = prop_oneof![
        3 => Just(End::Well),
        1 => Just(End::Overloaded),
        1 => Just(End::HungUp),
    ];
    prop_oneof![
        4 => prop::option::of(0..4_usize).prop_map(Event::Comes),
        1 => (0..40_usize).prop_map(Event::GivesUp),
        3 => (0..40_usize, end).prop_map(|(at, end)| Event::Ends(at, end)),
    ]
}

const QUEUE: usize = 6;

fn pool() -> Arc<Pool> {
    let options = UpstreamOptions::new("http://127.0.0.1:1/v1", "m");
    let clients = HttpClients::new(Duration::from_secs(1));
    let endpoints = (0..3)
        .map(|n| {
            let endpoint = EndpointOptions::new(format!("http://127.0.0.1:1/{n}"));
            let endpoint = Endpoint::new(&endpoint, &options, &clients).unwrap();
            (Arc::new(endpoint), Some(n + 1))
        })
        .collect();
    let queue = QueueLimits {
        length: QUEUE,
        wait: Duration::from_hours(1),
    };
    Pool::new(endpoints, queue, BreakerSettings::default())
}

type Waiter = Pin<Box<dyn Future<Output = Result<Ticket, Fault>>>>;

struct World {
    pool: Arc<Pool>,
    waiting: Vec<(u64, Waiter)>,
    tickets: Vec<Ticket>,
    arrived: u64,
    last_served: u64,
}

impl World {
    async fn happens(&mut self, event: Event) {
        match event {
            Event::Comes(preferred) => {
                let pool = Arc::clone(&self.pool);
                let wish = Wish {
                    preferred,
                    tried: Vec::new(),
                };
                let mut call: Waiter = Box::pin(async move { pool.take(wish).await });
                self.arrived += 1;
                match poll!(call.as_mut()) {
                    Poll::Ready(Ok(ticket)) => {
                        assert!(self.waiting.is_empty(), "it overtook those who wait");
                        self.tickets.push(ticket);
                    }
                    Poll::Ready(Err(fault)) => {
                        assert_eq!(fault.kind, FaultKind::QueueFull);
                        assert_eq!(self.waiting.len(), QUEUE);
                    }
                    Poll::Pending => self.waiting.push((self.arrived, call)),
                }
            }
            Event::GivesUp(at) if at < self.waiting.len() => drop(self.waiting.remove(at)),
            Event::Ends(at, end) if at < self.tickets.len() => {
                let mut ticket = self.tickets.swap_remove(at);
                match end {
                    End::Well => ticket.succeeded(false),
                    End::Overloaded => {
                        let fault = ticket
                            .endpoint()
                            .fault(FaultKind::Overloaded, 429, "is full");
                        ticket.failed(&fault, None);
                    }
                    End::HungUp => {}
                }
            }
            Event::GivesUp(_) | Event::Ends(..) => {}
        }
    }

    /// Those who were served take their places.
    async fn settles(&mut self) {
        let mut still = Vec::new();
        for (number, mut call) in std::mem::take(&mut self.waiting) {
            match poll!(call.as_mut()) {
                Poll::Ready(taken) => {
                    assert!(still.is_empty(), "one who came later was served first");
                    assert!(number > self.last_served);
                    self.last_served = number;
                    self.tickets.push(taken.unwrap());
                }
                Poll::Pending => still.push((number, call)),
            }
        }
        self.waiting = still;
    }

    fn check(&self) {
        let load = self.pool.load();
        assert_eq!(load.queued, self.waiting.len());
        for (at, endpoint) in load.endpoints.iter().enumerate() {
            let here = self.tickets.iter().filter(|ticket| ticket.lane() == at);
            assert_eq!(endpoint.in_flight as usize, here.count());
            let limit = endpoint.limit.unwrap();
            assert!(limit as usize <= at + 1);
            if !self.waiting.is_empty() {
                assert!(
                    endpoint.in_flight >= limit,
                    "somebody waits beside a free place"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn no_place_is_lost_or_given_twice_and_nobody_overtakes(
        events in prop::collection::vec(event(), 0..150),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = World {
                pool: pool(),
                waiting: Vec::new(),
                tickets: Vec::new(),
                arrived: 0,
                last_served: 0,
            };
            for event in events {
                world.happens(event).await;
                world.settles().await;
                world.check();
            }
            // Also those who were served and never looked.
            drop(std::mem::take(&mut world.tickets));
            drop(std::mem::take(&mut world.waiting));
            world.check();
        });
    }
}
