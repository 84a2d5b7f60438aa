//! Commands in errors and events: each acts on the list of the user whose process reports it.

use crate::PeerKey;
use rustix::process::getuid;

/// The users who log in have numbers from this one on (`UID_MIN`, `login.defs(5)`); those before, except root, run services.
const LOGIN_UID_MIN: u32 = 1000;

/// Returns `outboard WORDS` as an administrator types it for the user of this process.
pub fn owners_command(words: &str) -> String {
    command_of(getuid().as_raw(), std::env::var("USER").ok(), words)
}

/// Returns the refusal of a host that is not paired. It does not tell the name of the user to a stranger.
pub fn not_paired(key: &PeerKey) -> String {
    let user = if is_of_service(getuid().as_raw()) { ", here as the user of the service" } else { "" };
    format!(
        "this host is not paired with the other (key {}): pair them with `outboard pair`{user}",
        key.short()
    )
}

fn is_of_service(user: u32) -> bool {
    (1..LOGIN_UID_MIN).contains(&user)
}

fn command_of(user: u32, name: Option<String>, words: &str) -> String {
    if !is_of_service(user) {
        return format!("outboard {words}");
    }
    let name = name.unwrap_or_else(|| format!("#{user}"));
    format!("sudo -u {} -H outboard {words}", quoted(&name))
}

/// Quotes a word for a shell. Other hosts choose their names.
pub(super) fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| "?".into(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_a_service_acts_on_its_list() {
        let command = |user, name: Option<&str>| command_of(user, name.map(String::from), "pair");
        assert_eq!(command(998, Some("outboard")), "sudo -u outboard -H outboard pair");
        assert_eq!(command(998, None), "sudo -u '#998' -H outboard pair");
        for user in [0, 1000, 65534] {
            assert_eq!(command(user, Some("ada")), "outboard pair");
        }
    }
}
