//! `--require`: a host accepts one pipeline and no other.

use crate::error::PipelineError;
use crate::parsed::{Origin, PairUse, Pipeline};
use contract::Pair;

/// The pipeline that a proposal must be equal to, canonically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    own: Pipeline,
}

impl Requirement {
    /// Requires `own`, with the links and local options that this host runs it with.
    pub fn new(own: Pipeline) -> Self {
        Requirement { own }
    }

    /// The required pipeline.
    pub fn pipeline(&self) -> &Pipeline {
        &self.own
    }

    /// Reads a peer's proposal and gives this host's own pipeline if it is the same. A pair with local
    /// options may be named where this host names it too. Errors point at the first pair that differs.
    pub fn accept(
        &self,
        proposal: &str,
        table: &'static [&'static dyn Pair],
    ) -> Result<Pipeline, PipelineError> {
        let own = self.own.pairs();
        let proposed = Pipeline::parse_beside(proposal, table, Origin::Peer, own)?;
        if proposed == self.own {
            return Ok(self.own.clone());
        }
        let same = |(a, b): &(&PairUse, &PairUse)| a.canonical() == b.canonical();
        let equal = proposed.pairs().iter().zip(own).take_while(same).count();
        let place =
            proposed.pairs().get(equal).map_or(proposal.len()..proposal.len(), |used| used.place.clone());
        let problem = match self.own.canonical() {
            "" => "this host requires a flow without any pair".into(),
            required => format!("this host requires exactly `{required}`"),
        };
        Err(PipelineError::new(proposal, place, problem))
    }
}
