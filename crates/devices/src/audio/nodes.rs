//! The sources and sinks of a PipeWire server, and which of them are the default ones.
//!
//! Without a microphone, some session managers make the sound of the default speaker, its *monitor*, the default source. It is no
//! device to share, unless the user has chosen it: the other host would hear itself.

use ::pipewire as pw;
use pw::types::ObjectType;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the program at the server. Its nodes are recognized by it.
pub(super) const APPLICATION: &str = "Outboard";
/// The most nodes of a server that are considered.
const NODES_MAX: usize = 1024;

/// An object of the server, as it announces it.
pub(super) type Global<'a> = pw::registry::GlobalObject<&'a pw::spa::utils::dict::DictRef>;

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    Source,
    Sink,
}

/// A source or a sink of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) name: String,
    pub(super) description: String,
    client: Option<u32>,
}

impl Node {
    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.description == name
    }

    pub(super) fn title(&self) -> &str {
        if self.description.is_empty() { &self.name } else { &self.description }
    }
}

/// The sources and sinks of the server, by their numbers, and the numbers of Outboard's clients.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) nodes: BTreeMap<u32, Node>,
    /// Nodes that are a source and a sink.
    duplex: BTreeSet<u32>,
    own_clients: Vec<u32>,
    /// The name of the default source, if the server has told one.
    source: Option<String>,
    sink: Option<String>,
    /// The name of the source that the user has chosen as the default one.
    chosen_source: Option<String>,
}

impl Nodes {
    pub(super) fn add(&mut self, global: &Global<'_>) {
        let Some(found) = global.props else { return };
        let text = |key| found.get(key).unwrap_or("").to_string();
        if global.type_ == ObjectType::Client && found.get("application.name") == Some(APPLICATION) {
            self.own_clients.push(global.id);
        }
        let kind = match found.get("media.class") {
            Some("Audio/Source" | "Audio/Source/Virtual") => NodeKind::Source,
            Some("Audio/Sink") => NodeKind::Sink,
            Some("Audio/Duplex") => {
                self.duplex.insert(global.id);
                return;
            }
            _ => return,
        };
        if global.type_ == ObjectType::Node && self.nodes.len() < NODES_MAX {
            let (name, description) = (text("node.name"), text("node.description"));
            let client = found.get("client.id").and_then(|client| client.parse().ok());
            self.nodes.insert(global.id, Node { kind, name, description, client });
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.nodes.remove(&id);
        self.duplex.remove(&id);
    }

    pub(super) fn is_own(&self, node: &Node) -> bool {
        node.client.is_some_and(|client| self.own_clients.contains(&client))
    }

    /// Returns the node with this name, else the one with this description. The source and the sink of a headset may have one
    /// description: without a kind, the sink comes first.
    pub(super) fn find(&self, name: &str, kind: Option<NodeKind>) -> Option<(u32, &Node)> {
        let is_kind = |node: &Node| kind.is_none_or(|kind| node.kind == kind);
        let nodes = self.nodes.iter().filter(|(_, node)| node.is_named(name) && is_kind(node));
        nodes
            .min_by_key(|(_, node)| (node.name != name, node.kind == NodeKind::Source))
            .map(|(id, node)| (*id, node))
    }

    /// Takes an entry of the server's list `default`. Returns true if it is about a default device.
    pub(super) fn set_default(&mut self, key: Option<&str>, value: Option<&str>) -> bool {
        // The value is `{"name":"…"}`.
        let name = value.and_then(|value| value.split('"').nth(3)).map(str::to_string);
        match key {
            Some("default.audio.source") => self.source = name,
            Some("default.audio.sink") => self.sink = name,
            Some("default.configured.audio.source") => self.chosen_source = name,
            None => self.forget_defaults(),
            Some(_) => return false,
        }
        true
    }

    pub(super) fn forget_defaults(&mut self) {
        (self.source, self.sink, self.chosen_source) = (None, None, None);
    }

    /// Returns true if a device of this kind is the default one, or may become it.
    pub(super) fn has_default(&self, kind: NodeKind) -> bool {
        let name = match kind {
            NodeKind::Source => self.source.as_ref(),
            NodeKind::Sink => self.sink.as_ref(),
        };
        let named = || self.nodes.values().filter(move |node| name == Some(&node.name));
        let is_chosen = kind == NodeKind::Source && name == self.chosen_source.as_ref();
        match named().next() {
            Some(_) => is_chosen || named().any(|node| node.kind == kind),
            None => !self.duplex.is_empty() || self.nodes.values().any(|node| node.kind == kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NodeKind::{Sink, Source};
    use super::*;

    fn node(kind: NodeKind, name: &str) -> Node {
        Node { kind, name: name.into(), description: "Headset".into(), client: None }
    }

    /// A headset with Bluetooth has a source only while it has the profile for calls.
    #[test]
    fn a_device_that_returns_has_the_kind_that_it_had() {
        let mut nodes = Nodes::default();
        nodes.nodes.extend([(7, node(Source, "input")), (9, node(Sink, "output"))]);
        let found = |nodes: &Nodes, name: &str, kind| nodes.find(name, kind).map(|(id, _)| id);
        assert_eq!(found(&nodes, "Headset", Some(Sink)), Some(9));
        assert_eq!(found(&nodes, "Headset", Some(Source)), Some(7));
        assert_eq!(found(&nodes, "Headset", None), Some(9), "the description of both is the speaker's");
        assert_eq!(found(&nodes, "input", None), Some(7));
        nodes.remove(9);
        assert_eq!(found(&nodes, "Headset", Some(Sink)), None);
    }

    #[test]
    fn the_monitor_of_a_speaker_is_no_microphone() {
        let mut nodes = Nodes::default();
        let has = |nodes: &Nodes| [Source, Sink].map(|kind| nodes.has_default(kind));
        let set = |nodes: &mut Nodes, key, value| nodes.set_default(Some(key), value);
        assert_eq!(has(&nodes), [false; 2]);
        nodes.nodes.insert(9, node(Sink, "output"));
        assert_eq!(has(&nodes), [false, true]);
        assert!(set(&mut nodes, "default.audio.sink", Some(r#"{"name":"output"}"#)));
        assert!(set(&mut nodes, "default.audio.source", Some(r#"{ "name": "output" }"#)));
        assert!(!set(&mut nodes, "default.video.source", Some(r#"{"name":"camera"}"#)));
        assert_eq!(has(&nodes), [false, true], "its monitor");
        assert!(set(&mut nodes, "default.configured.audio.source", Some(r#"{"name":"output"}"#)));
        assert_eq!(has(&nodes), [true; 2], "its monitor, which the user has chosen");
        assert!(set(&mut nodes, "default.configured.audio.source", None));
        // Its plug is empty, so the speaker stays the default source.
        nodes.nodes.insert(7, node(Source, "input"));
        assert_eq!(has(&nodes), [false, true]);
        assert!(set(&mut nodes, "default.audio.source", Some(r#"{"name":"input"}"#)));
        assert_eq!(has(&nodes), [true; 2]);
        nodes.remove(9);
        assert_eq!(has(&nodes), [true, false]);
        // A name that the server has not listed, or a server without such names: any device may be the default one.
        assert!(set(&mut nodes, "default.audio.source", Some(r#"{"name":"unknown"}"#)));
        assert_eq!(has(&nodes), [true, false]);
        nodes.set_default(None, None);
        assert_eq!(has(&nodes), [true, false]);
    }
}
