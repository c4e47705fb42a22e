package vault

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// ServiceECR is the service of a credential that pulls images from a registry at AWS: with its key AWS is asked
// for the registry's password.
const ServiceECR = "ecr"

const (
	// pullTime is how long before its end a registry's password is not used any more: a pull that has begun with
	// it may take that long.
	pullTime = 30 * time.Minute
	// ecrLife bounds what AWS may say of a password's life: it is 12 hours.
	ecrLife = 12 * time.Hour
)

// Registry is who to be at a registry of images, by a credential of the organization: within its rule and on
// record, like any use. ref is as for Key. A key for AWS is exchanged for the registry's password, which stays
// in memory; any other value is the password of user, and where there is no user, USER:PASSWORD.
func (k *Keeper) Registry(ctx context.Context, ref, registry, user string) (string, outboard.Secret, error) {
	none := outboard.Secret{}
	row, s, err := k.own(ctx, ref, http.MethodGet, "https://"+registry+"/v2/")
	if err != nil {
		return "", none, err
	}
	text := s.Value
	switch {
	case row.Auth.AWS != nil:
		text, err = k.ecrLogin(ctx, "server", &row.Credential, s)
	case row.Auth.GitHub != nil:
		err = noKey(ref, &row.Auth)
	case user != "":
		return user, text, nil
	}
	if err != nil {
		return "", none, err
	}
	user, password, ok := strings.Cut(text.Reveal(), ":")
	if !ok {
		return "", none, outboard.Errorf(outboard.Invalid, "credential %s is not USER:PASSWORD, as a registry's is",
			ref)
	}
	return user, outboard.NewSecret(password), nil
}

var ecrHostRE = regexp.MustCompile(`^[0-9]{12}\.dkr\.ecr\.([a-z0-9-]{1,64})\.(amazonaws\.com|amazonaws\.com\.cn)$`)

// ECRRegion returns the region that a registry at AWS is in. It is "" for any other host. What is returned makes
// a name below AWS's own domain, so that no registry's name sends a key elsewhere.
func ECRRegion(registry string) string {
	if m := ecrHostRE.FindStringSubmatch(registry); m != nil {
		return m[1]
	}
	return ""
}

// ecrEndpoint is where the password of a registry is had.
func ecrEndpoint(registry string) string {
	m := ecrHostRE.FindStringSubmatch(registry)
	return "https://api.ecr." + m[1] + "." + m[2] + "/"
}

// CheckECR says what keeps a credential for AWS's registries from being one, or "": it is for exactly one
// registry, in the region of its key.
func CheckECR(a *outboard.Auth) string {
	switch {
	case len(a.Rule.Hosts) != 1 || ECRRegion(a.Rule.Hosts[0]) == "":
		return "its one host must be a registry, ACCOUNT.dkr.ecr.REGION.amazonaws.com"
	case ECRRegion(a.Rule.Hosts[0]) != a.AWS.Region:
		return "the registry is in the region " + ECRRegion(a.Rule.Hosts[0]) + ", and the key is for " + a.AWS.Region
	}
	return ""
}

// ecrLogin returns USER:PASSWORD for the one registry that a credential is for: what AWS has given, until
// shortly before its end. Several pulls at once ask once, on record.
func (k *Keeper) ecrLogin(ctx context.Context, actor string, c *outboard.Credential,
	s Secrets) (outboard.Secret, error) {
	if c.Auth.AWS.Service != ServiceECR {
		return outboard.Secret{}, outboard.Errorf(outboard.Invalid,
			"credential %s is for the service %s of AWS, and a registry's is for %s", label(c), c.Auth.AWS.Service, ServiceECR)
	}
	if why := CheckECR(&c.Auth); why != "" {
		return outboard.Secret{}, outboard.Errorf(outboard.Invalid, "credential %s: %s", label(c), why)
	}
	key := fmt.Sprintf("%s/%d", c.ID, c.Version)
	if login, ok := k.mintedFor(key, ""); ok {
		return login, nil
	}
	return k.flights.do(ctx, key, func(ctx context.Context) (outboard.Secret, error) {
		m, err := k.askECR(ctx, actor, c, s)
		if err != nil {
			return outboard.Secret{}, err
		}
		k.keepMinted(key, m)
		return m.token, nil
	})
}

// askECR exchanges a key for a registry's password.
func (k *Keeper) askECR(ctx context.Context, actor string, c *outboard.Credential, s Secrets) (minted, error) {
	target := ecrEndpoint(c.Auth.Rule.Hosts[0])
	r, err := RequestFor(http.MethodPost, target)
	if err != nil {
		return minted{}, err
	}
	if err := k.record(ctx, actor, &r, []string{label(c)},
		versions([]*store.Credential{{Credential: *c}})); err != nil {
		return minted{}, err
	}
	const body = "{}"
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(body))
	if err != nil {
		return minted{}, outboard.Errorf(outboard.Internal, "asking AWS for a registry's password: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	signer := awsSigner{scope: *c.Auth.AWS, secrets: s, now: k.cfg.Signed}
	if err := signer.sign(&SignRequest{Method: req.Method, URL: target, Header: req.Header, Body: []byte(body),
		Held: true}); err != nil {
		return minted{}, err
	}
	a, err := askWith(k.registries(), req)
	if err != nil {
		return minted{}, outboard.Errorf(outboard.Unavailable, "asking %s for the password of registry %s: %w",
			req.URL.Host, c.Auth.Rule.Hosts[0], withoutURL(err))
	}
	if a.status != http.StatusOK {
		return minted{}, ecrRefusal(c, req.URL.Host, a)
	}
	return k.ecrAnswer(c, req.URL.Host, a.body)
}

// registries is the client that asks for registries' passwords.
func (k *Keeper) registries() *http.Client {
	if k.cfg.Registries != nil {
		return k.cfg.Registries
	}
	return k.cfg.HTTP
}

// withoutURL is the cause of a failed request. A refusal to dial keeps its kind for whoever asks.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

var awsErrorRE = regexp.MustCompile(`^[A-Za-z]{1,64}$`)

// ecrRefusal says why AWS gave no password: by the name of the error, since the text beside it may repeat parts
// of the request.
func ecrRefusal(c *outboard.Credential, host string, a answer) error {
	var out struct {
		Type string `json:"__type"`
	}
	_ = json.Unmarshal(a.body, &out) // another answer has no name
	kind := out.Type[strings.LastIndexByte(out.Type, '#')+1:]
	if a.status >= 500 || a.status == http.StatusTooManyRequests || !awsErrorRE.MatchString(kind) {
		return outboard.Errorf(outboard.Unavailable, "asking %s for the password of registry %s: it answered %d", host,
			c.Auth.Rule.Hosts[0], a.status)
	}
	return outboard.Errorf(outboard.Denied, "asking %s for the password of registry %s: it answered %d, %s", host,
		c.Auth.Rule.Hosts[0], a.status, kind).
		WithHint("the key needs the right ecr:GetAuthorizationToken, and signatures need this host's clock to be right")
}

// ecrAnswer reads a registry's password. What is no password is an error that repeats nothing of it.
func (k *Keeper) ecrAnswer(c *outboard.Credential, host string, body []byte) (minted, error) {
	var out struct {
		Data []struct {
			Token     string  `json:"authorizationToken"`
			ExpiresAt float64 `json:"expiresAt"` // seconds
		} `json:"authorizationData"`
	}
	none := outboard.Errorf(outboard.Unavailable, "%s sent no password for registry %s", host, c.Auth.Rule.Hosts[0])
	if err := json.Unmarshal(body, &out); err != nil || len(out.Data) == 0 {
		return minted{}, none
	}
	login, err := base64.StdEncoding.DecodeString(out.Data[0].Token)
	user, password, ok := strings.Cut(string(login), ":")
	if err != nil || !ok || user == "" || password == "" {
		return minted{}, none
	}
	now := k.cfg.Now()
	life := min(out.Data[0].ExpiresAt-float64(now.Unix()), ecrLife.Seconds())
	return minted{token: outboard.NewSecret(string(login)),
		until: now.Add(time.Duration(max(0, life))*time.Second - pullTime), of: *c, by: uses{}}, nil
}

// forgotten is the end of a registry's password that a kill covers: AWS has no way to take one back.
func (k *Keeper) forgotten(why string, m minted) withdrawal {
	return withdrawal{k: k, label: label(&m.of), kind: "registry_password", why: why,
		ask: func(context.Context) (*http.Request, error) {
			return nil, outboard.Errorf(outboard.NotFound, "it is forgotten here, and AWS takes no password of a "+
				"registry back: it ends after 12 hours")
		}}
}
