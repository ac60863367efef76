"""Is the schedule of a replay equal to SGLang's? Its own server loop on the real clock, recorded and replayed."""
