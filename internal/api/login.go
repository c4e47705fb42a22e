package api

import (
	"errors"
	"net/http"

	"github.com/outboard-dev/outboard/internal/control"
)

// Signing in: the only routes besides /healthz that want no key. They say nothing about who exists here to whom
// the identity provider does not know.

// open are the routes without a key.
func (s *server) open() []route {
	return []route{
		{"POST", "/v1/outboard/login/start", s.startLogin},
		{"POST", "/v1/outboard/login", s.login},
		{"POST", "/v1/outboard/login/renew", s.renewLogin},
		{"POST", "/v1/outboard/login/device", s.startDevice},
		{"POST", "/v1/outboard/login/device/token", s.loginDevice},
	}
}

// handleOpen is handle without a caller.
func (s *server) handleOpen(v verb) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := onlyJSON(r); err != nil {
			s.fail(w, r, err)
			return
		}
		out, err := v(&request{Request: r, w: w})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		writeJSON(w, http.StatusOK, out)
	}
}

type loginStartOut struct {
	Type   string `json:"type"` // "login_start"
	URL    string `json:"url"`
	Issuer string `json:"issuer"`
}

func (s *server) startLogin(r *request) (any, error) {
	var in struct {
		Redirect  string `json:"redirect_uri" need:"yes"`
		State     string `json:"state" need:"yes"`
		Nonce     string `json:"nonce" need:"yes"`
		Challenge string `json:"code_challenge" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	address, issuer, err := s.ctl.LoginURL(r.Context(), control.LoginStart{Redirect: in.Redirect, State: in.State,
		Nonce: in.Nonce, Challenge: in.Challenge})
	return loginStartOut{"login_start", address, issuer}, err
}

type loginOut struct {
	Type string  `json:"type"` // "login"
	User userOut `json:"user"`
	Key  keyOut  `json:"key"`
}

func (s *server) login(r *request) (any, error) {
	var in struct {
		Code     string `json:"code" need:"yes"`
		Redirect string `json:"redirect_uri" need:"yes"`
		Verifier string `json:"code_verifier" need:"yes"`
		Nonce    string `json:"nonce" need:"yes"`
		Org      string `json:"organization"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	u, k, secret, err := s.ctl.Login(r.Context(), control.LoginAnswer{Code: in.Code, Redirect: in.Redirect,
		Verifier: in.Verifier, Nonce: in.Nonce}, in.Org)
	out := loginOut{"login", showUser(u), showKey(k)}
	out.Key.Secret = secret
	return out, err
}

// renewLogin takes the login itself, where every other route takes a key: it may be over, which no caller may be.
func (s *server) renewLogin(r *request) (any, error) {
	if err := r.decode(&struct{}{}); err != nil {
		return nil, err
	}
	secret, err := keyOf(r.Request)
	if err != nil {
		return nil, err
	}
	u, k, err := s.ctl.RenewLogin(r.Context(), secret)
	return loginOut{"login", showUser(u), showKey(k)}, err
}

type deviceOut struct {
	Type   string `json:"type"` // "login_device"
	Code   string `json:"device_code"`
	User   string `json:"user_code"`
	URL    string `json:"verification_uri"`
	Whole  string `json:"verification_uri_complete,omitempty"`
	Lasts  int    `json:"expires_in"` // seconds
	Every  int    `json:"interval"`   // seconds
	Issuer string `json:"issuer"`
}

func (s *server) startDevice(r *request) (any, error) {
	if err := r.decode(&struct{}{}); err != nil {
		return nil, err
	}
	d, issuer, err := s.ctl.LoginDevice(r.Context())
	return deviceOut{"login_device", d.Code, d.User, d.URL, d.Whole, int(d.Lasts.Seconds()), int(d.Every.Seconds()),
		issuer}, err
}

// pendingOut says that nobody has signed in yet.
type pendingOut struct {
	Type     string `json:"type"` // "login_pending"
	SlowDown bool   `json:"slow_down"`
}

func (s *server) loginDevice(r *request) (any, error) {
	var in struct {
		Code string `json:"device_code" need:"yes"`
		Org  string `json:"organization"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	u, k, secret, err := s.ctl.LoginAt(r.Context(), in.Code, in.Org)
	if slow := errors.Is(err, control.ErrLoginSlowDown); slow || errors.Is(err, control.ErrLoginPending) {
		return pendingOut{"login_pending", slow}, nil
	}
	out := loginOut{"login", showUser(u), showKey(k)}
	out.Key.Secret = secret
	return out, err
}
