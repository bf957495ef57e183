"""The edge: gRPC servicers and the decode client; conversions and error mapping, no compute."""
