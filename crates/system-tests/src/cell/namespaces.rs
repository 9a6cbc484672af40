//! A network for a cell: namespaces of its own, connected by cables that can be pulled. Nothing in it is reachable from
//! the machine's real network.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One namespace for the server, one for each client, a veth pair between the server's and each of them.
#[derive(Debug)]
pub(super) struct Namespaces {
    server: String,
    clients: Vec<String>,
}

/// Distinguishes the cells of one test process.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Namespaces {
    /// # Panics
    /// If the machine refuses (root is needed).
    pub(super) fn make(clients: usize) -> Namespaces {
        let id = format!("soda-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut namespaces = Namespaces { server: format!("{id}-s"), clients: Vec::new() };
        ip(&["netns", "add", &namespaces.server]);
        ip(&["-n", &namespaces.server, "link", "set", "lo", "up"]);
        for number in 0..clients {
            let client = format!("{id}-c{number}");
            ip(&["netns", "add", &client]);
            namespaces.clients.push(client.clone());
            let port = port(number);
            let server = &namespaces.server;
            ip(&[
                "-n", server, "link", "add", &port, "type", "veth", "peer", "name", "cable", "netns", &client,
            ]);
            ip(&["-n", server, "address", "add", &format!("{}/24", server_ip(number)), "dev", &port]);
            ip(&["-n", server, "link", "set", &port, "up"]);
            ip(&["-n", &client, "address", "add", &format!("10.213.{number}.2/24"), "dev", "cable"]);
            ip(&["-n", &client, "link", "set", "cable", "up"]);
            ip(&["-n", &client, "link", "set", "lo", "up"]);
        }
        namespaces
    }

    /// Where client `number` finds the server.
    pub(super) fn server_address(&self, number: usize, port: u16) -> String {
        format!("{}:{port}", server_ip(number))
    }

    pub(super) fn enter_server(&self) -> Vec<String> {
        enter(&self.server)
    }

    pub(super) fn enter_client(&self, number: usize) -> Vec<String> {
        enter(&self.clients[number])
    }

    /// The end at the server goes down: what either side sends vanishes, no connection is told.
    pub(super) fn cut(&self, number: usize) {
        ip(&["-n", &self.server, "link", "set", &port(number), "down"]);
    }

    pub(super) fn heal(&self, number: usize) {
        ip(&["-n", &self.server, "link", "set", &port(number), "up"]);
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.clients.iter().chain([&self.server]) {
            // The cables go with them. Errors: nothing more to be done about it here.
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn server_ip(number: usize) -> String {
    format!("10.213.{number}.1")
}

/// `nsenter` and not `ip netns exec`: that makes a mount namespace as well, in which a mount would be invisible here.
fn enter(namespace: &str) -> Vec<String> {
    vec!["nsenter".to_owned(), format!("--net=/run/netns/{namespace}"), "--".to_owned()]
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {}
        other => panic!("ip {}: {other:?}", arguments.join(" ")),
    }
}

/// The server's end of a client's cable.
fn port(number: usize) -> String {
    format!("port{number}")
}
