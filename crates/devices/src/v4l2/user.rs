//! The settings of the application host's user for a camera, and whether the camera is wanted: the flow to the camera, whatever the
//! node for programs is.

use super::properties::{CameraControl, settings};
use std::collections::{BTreeMap, VecDeque};
use wire::formats::controls::{SETTINGS_MAX, Setting, Update};

/// The user of a camera.
#[derive(Debug)]
pub(crate) struct CameraUser {
    controls: Vec<CameraControl>,
    /// The value that the user has set for each control.
    settings: BTreeMap<u32, i64>,
    /// Updates that wait for a pull.
    updates: VecDeque<Update>,
    /// The last value of [`Update::Wanted`] that was queued.
    announced: Option<bool>,
    settings_made: u64,
}

impl CameraUser {
    /// A user of a camera with these controls, and the initial settings.
    pub(crate) fn new(controls: Vec<CameraControl>, settings: &[Setting]) -> CameraUser {
        CameraUser {
            controls,
            settings: settings.iter().map(|setting| (setting.id, setting.value)).collect(),
            updates: VecDeque::new(),
            announced: None,
            settings_made: 0,
        }
    }

    /// Queues an update if the camera has become wanted or unwanted.
    pub(crate) fn set_wanted(&mut self, wanted: bool) {
        if self.announced.is_some_and(|announced| announced != wanted) {
            self.announced = Some(wanted);
            self.updates.push_back(Update::Wanted(wanted));
        }
    }

    /// Replaces the queue by the current state: all settings, and whether the camera is wanted, if that is known.
    pub(crate) fn queue_state(&mut self, wanted: Option<bool>) {
        self.updates.clear();
        self.queue_settings();
        if let Some(wanted) = wanted {
            self.announced = Some(wanted);
            self.updates.push_back(Update::Wanted(wanted));
        }
    }

    fn queue_settings(&mut self) {
        let settings = self.settings.iter().map(|(id, value)| Setting { id: *id, value: *value });
        self.updates.push_back(Update::Settings(settings.collect()));
    }

    /// Returns the next update for the camera.
    pub(crate) fn next(&mut self) -> Option<Update> {
        self.updates.pop_front()
    }

    /// Returns true if an update waits.
    pub(crate) fn has_update(&self) -> bool {
        !self.updates.is_empty()
    }

    /// The settings that the user has made.
    pub(crate) fn settings_made(&self) -> u64 {
        self.settings_made
    }

    /// Applies settings from the user and describes these controls. Without settings, describes all controls.
    pub(crate) fn handle_command(&mut self, text: &str) -> Result<String, String> {
        let new = settings(&self.controls, text)?;
        if new.len() > SETTINGS_MAX {
            return Err(format!("at most {SETTINGS_MAX} settings at once"));
        }
        if !new.is_empty() {
            self.settings.extend(new.iter().map(|setting| (setting.id, setting.value)));
            self.settings_made += new.len() as u64;
            // One update has all settings, so the queue stays short.
            self.updates.retain(|update| !matches!(update, Update::Settings(_)));
            self.queue_settings();
        }
        let described = self
            .controls
            .iter()
            .filter(|control| new.is_empty() || new.iter().any(|setting| setting.id == control.info.id));
        let value =
            |control: &CameraControl| self.settings.get(&control.info.id).copied().unwrap_or(control.value);
        Ok(described.map(|control| control.describe(value(control))).collect::<Vec<_>>().join("\n"))
    }
}
