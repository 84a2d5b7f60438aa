pub(crate) fn doctor(_json: bool) -> Result<(), crate::output::Failure> {
    Ok(())
}
