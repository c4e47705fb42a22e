package main

import (
	"net/http"
	"strings"

	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/bridge"
)

// doors is everything that answers at the server's address: the API, and below a prefix the bridge protocol.
func (s *server) doors() http.Handler {
	main := api.New(api.Config{Control: s.control, Logger: s.log, Hosts: s.cfg.Hosts, Now: s.store.Now})
	side := bridge.New(bridge.Config{Control: s.control, Logger: s.log, Ports: s.portNames})
	return patient(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, bridge.Prefix+"/") {
			side.ServeHTTP(w, r)
			return
		}
		main.ServeHTTP(w, r)
	}), bodyPause, bodyRest)
}
