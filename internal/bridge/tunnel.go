package bridge

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// port reads the port that the path names.
func (r *request) port() (uint16, error) {
	n, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || n == 0 {
		return 0, outboard.Errorf(outboard.Invalid, "%q is not a port", clip(r.PathValue("port")))
	}
	return uint16(n), nil
}

// openTunnel lets everybody who can reach the server's port proxy visit a port of the box, by a name that says
// which. Before, and after closeTunnel, nobody can: the boxes made here ask for a token at their ports.
func (s *Server) openTunnel(r *request) error {
	port, err := r.port()
	if err != nil {
		return err
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	var in struct {
		Name string `json:"name"`
	}
	if err := r.decode(&in); err != nil {
		return err
	}
	if in.Name != "" {
		return outboard.Errorf(outboard.Unimplemented, "tunnels have no names of their own here: leave name out")
	}
	scheme, domain := "", ""
	if s.ports != nil {
		scheme, domain = s.ports()
	}
	if domain == "" {
		return outboard.Errorf(outboard.Unimplemented,
			"ports of sandboxes are served beside the E2B API, which is off").WithHint("outboard serve --e2b ADDRESS")
	}
	conn, err := m.DialPort(r.Context(), port)
	if bad, ok := errors.AsType[*control.Refusal](err); ok && bad.Code == "denied" {
		return outboard.Errorf(outboard.Denied, "%s", bad.Message).WithHint("let the service listen on another port")
	}
	if err != nil {
		return outboard.Errorf(outboard.Conflict, "nothing listens on port %d of the sandbox yet", port).
			WithHint("start the service first")
	}
	conn.Close()
	if _, err := s.ctl.OpenPort(r.Context(), r.by, r.id(), port, true); err != nil {
		return err
	}
	host := strconv.Itoa(int(port)) + "-" + string(r.id()) + "." + domain
	reply(r.w, http.StatusOK, map[string]any{"id": "port-" + strconv.Itoa(int(port)), "port": port, "url": scheme +
		"://" + host, "hostname": host,
		"createdAt": time.Now().UTC().Format(time.RFC3339)})
	return nil
}

func (s *Server) closeTunnel(r *request) error {
	port, err := r.port()
	if err != nil {
		return err
	}
	if _, err := s.ctl.OpenPort(r.Context(), r.by, r.id(), port, false); err != nil {
		return err
	}
	r.w.WriteHeader(http.StatusNoContent)
	return nil
}
