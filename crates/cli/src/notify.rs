//! Word to the service manager, as sd_notify(3) has it: a datagram to the socket that it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state (`READY=1`, `STOPPING=1`) where a manager asked for it with `NOTIFY_SOCKET`.
pub fn manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = send(name.as_bytes(), state) {
        tracing::warn!("the service manager was not told {state}: {e}");
    }
}

/// A name that begins with `@` is an abstract socket's.
fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_path_and_by_abstract_name() {
        let path = std::env::temp_dir().join(format!("lockstep-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        let name = format!("lockstep-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        let mut bytes = [0; 32];
        for (socket, wanted) in [(by_path, "READY=1"), (by_name, "STOPPING=1")] {
            let n = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], wanted.as_bytes());
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str().as_bytes(), "READY=1").is_err());
    }
}
