"""Operations of the API as descriptions of requests, one module for each tag."""
