//! Whether a client that sends no more is gone, or only has nothing more to say.
//!
//! A client that closes its socket and one that only ends its sending (`shutdown` of one side, as
//! `nc -N` does after a request) look the same on the wire until something is sent to them. Of a
//! client on this machine the system's socket table knows more: a closed socket belongs to no
//! process.

use std::net::{IpAddr, SocketAddr};

/// True where nobody holds the client's socket; `None` where this machine cannot know.
pub fn is_gone(local: SocketAddr, peer: SocketAddr) -> Option<bool> {
    if !peer.ip().is_loopback() && peer.ip() != local.ip() {
        return None;
    }
    let table = if peer.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let table = std::fs::read_to_string(table).ok()?;
    // A socket that is in the table no more has been closed for a while.
    Some(inode_of(&table, peer, local).is_none_or(|inode| inode == 0))
}

/// The inode of the socket from `local` to `remote`; 0 belongs to no process.
fn inode_of(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let (local, remote) = (spelt(local), spelt(remote));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let ours = fields.nth(1)? == local && fields.next()? == remote;
        // After both addresses: state, queues, timer, retransmits, uid, timeout, inode.
        if ours { fields.nth(6)?.parse().ok() } else { None }
    })
}

/// An address as the table spells it: 32-bit words of the machine's own order in hex.
fn spelt(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    let ip: String = words.map(|w| format!("{w:08X}")).collect();
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};

    #[test]
    fn the_table_is_read_as_it_is_spelt() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                     uid  timeout inode\n   0: 0100007F:7531 0100007F:C350 01 00000000:00000000 \
                     00:00000000 00000000     0        0 4711 1 0 20 4 30 10 -1\n   1: \
                     0100007F:C350 0100007F:7531 05 00000000:00000000 00:00000000 00000000  1000 \
                     0 0 1 0\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(inode_of(table, at(30001), at(50000)), Some(4711));
        assert_eq!(inode_of(table, at(50000), at(30001)), Some(0));
        assert_eq!(inode_of(table, at(50000), at(30002)), None);
        let six: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(spelt(six), "00000000000000000000000001000000:0050");
    }

    #[test]
    fn a_closed_socket_is_told_from_one_that_only_sends_no_more() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has nothing to tell apart.
            let Ok(listener) = TcpListener::bind(ip) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            assert_eq!(is_gone(local, peer), Some(false));
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(is_gone(local, peer), Some(false));
            drop(client);
            let mut left = 10_000;
            while is_gone(local, peer) != Some(true) {
                left -= 1;
                assert!(left > 0, "a closed socket is still held");
            }
        }
        let far: SocketAddr = "192.0.2.1:5".parse().unwrap();
        assert_eq!(is_gone("198.51.100.7:80".parse().unwrap(), far), None);
    }
}
