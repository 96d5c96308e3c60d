//! A real server on a real socket over a small engine whose answers a test can foresee.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod engine;
pub mod http;
pub mod words;

pub use engine::{Toy, ToyConfig};
pub use http::{Answer, Client};

use lockstep_flow::Settings;
use lockstep_flow::settings::Source;
use lockstep_serve::{Bound, Drained, ServeConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A running server; stopped when dropped.
pub struct Server {
    pub address: SocketAddr,
    pub toy: Arc<Toy>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Drained>>,
}

/// Settings with some knobs set.
pub fn settings(knobs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in knobs {
        let knob = lockstep_flow::knobs::find(name).unwrap_or_else(|| panic!("no knob {name}"));
        settings.set(knob, value, Source::Flag).unwrap();
    }
    settings
}

impl Server {
    pub fn start() -> Server {
        Server::with(ToyConfig::default(), &[])
    }

    pub fn with(toy: ToyConfig, knobs: &[(&str, &str)]) -> Server {
        let text = words::model();
        let toy = Toy::start(toy, Arc::clone(&text));
        let config = ServeConfig {
            settings: settings(knobs),
            aliases: vec!["toy".into(), "toy-alias".into()],
            launch_command: Some("lockstep serve".into()),
            settings_file: None,
        };
        let host = config.settings.text("server.host").to_owned();
        let (stop, stopped) = oneshot::channel::<()>();
        let (address_out, address_in) = std::sync::mpsc::channel();
        let engine = Arc::clone(&toy);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let bound = Bound::bind(&host, 0).await.unwrap();
                address_out.send(bound.address()).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                bound.serve(config, engine, text, stop).await
            })
        });
        let address = address_in.recv().unwrap();
        Server { address, toy, stop: Some(stop), thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Asks for the end, as a signal would.
    pub fn signal(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until the server has ended.
    pub fn join(mut self) -> Drained {
        self.signal();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn toy_counters(&self) -> lockstep_flow::status::Counters {
        use lockstep_serve::Engine;
        self.toy.status().counters
    }

    /// One request on a connection of its own.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        self.client().post(path, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.client().get(path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.toy.resume();
        self.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until something holds; the limit only ends a test that would hang.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 300, "still not so after five minutes: {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
