"""HTTP beside gRPC: the request and response shapes of two public services, so that their users switch by URL."""
