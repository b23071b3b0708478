"""gRPC contracts of rstar and the transport that all its services share"""
