package outboard

import (
	"crypto/rand"
	"maps"
	"strings"
	"time"
)

// BoxID names a box: a sandbox that a client made for itself, without a session. It is "box" and 20 lower-case
// letters and digits, so that it can be a label of a DNS name.
type BoxID string

// SnapshotID names a saved state of a box.
type SnapshotID string

const (
	boxPrefix      = "box"
	snapshotPrefix = "snap"
	boxAlphabet    = "abcdefghijklmnopqrstuvwxyz234567" // as in base32: 5 bits a character
	boxRandom      = 20                                 // characters: 100 bits
)

// NewBoxID returns a fresh random id.
func NewBoxID() BoxID { return BoxID(boxPrefix + randomLabel()) }

// NewSnapshotID returns a fresh random id.
func NewSnapshotID() SnapshotID { return SnapshotID(snapshotPrefix + randomLabel()) }

func randomLabel() string { return strings.ToLower(rand.Text())[:boxRandom] }

// Subject is a box as a kill sees it.
func (b *Box) Subject() KillSubject { return KillSubject{Owner: b.Owner, Person: b.Person} }

// Valid reports whether the id has the shape of one.
func (id BoxID) Valid() bool { return validLabel(boxPrefix, string(id)) }

// Valid reports whether the id has the shape of one.
func (id SnapshotID) Valid() bool { return validLabel(snapshotPrefix, string(id)) }

func validLabel(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == boxRandom && strings.Trim(rest, boxAlphabet) == ""
}

// BoxState is where a box is in its life. A box that was killed has no row.
type BoxState string

// The states of a box.
const (
	BoxRunning BoxState = "running"
	BoxPaused  BoxState = "paused"
)

// Box is the row of a raw sandbox. fleet is its only writer.
type Box struct {
	ID       BoxID             `json:"id"`
	Owner    KeyID             `json:"owner"`
	Host     string            `json:"host"`
	State    BoxState          `json:"state"`
	Machine  SandboxID         `json:"machine"`        // "" while only Saved is left of it
	Template string            `json:"template"`       // what it was made from: "base", or a snapshot's id
	Saved    BlobRef           `json:"saved,omitzero"` // files of a box that was paused without its processes
	Env      EnvConfig         `json:"env"`            // how its machines are made
	Vars     map[string]string `json:"vars,omitempty"` // in the environment of every process
	Metadata map[string]string `json:"metadata,omitempty"`
	Secret   string            `json:"secret"` // who has it may use the box, and nothing else
	// who visits its ports must have this one; "" = those from FirstPublicPort up ask for nothing
	Traffic   string   `json:"traffic,omitempty"`
	OpenPorts []uint16 `json:"open_ports,omitempty"` // that ask for nothing, whatever Traffic is
	// what its ports are told they are called; ${PORT} stands for the port
	MaskHost string   `json:"mask_host,omitempty"`
	TLSPorts []uint16 `json:"tls_ports,omitempty"` // that its programs serve with TLS themselves
	// who its programs run as unless it is said; "" = the tool's user
	User      string        `json:"user,omitempty"`
	Workdir   string        `json:"workdir,omitempty"`    // and where; "" = the user's home
	NoNetwork bool          `json:"no_network,omitempty"` // its machines have no way to the gateway at all
	Net       BoxNetwork    `json:"net,omitzero"`
	Headers   BoxHeaders    `json:"headers,omitzero"`
	OnTimeout TimeoutPolicy `json:"on_timeout,omitzero"`
	StartedAt time.Time     `json:"started_at"` // or resumed
	EndAt     time.Time     `json:"end_at"`     // of a paused box: when it was paused
	CreatedAt time.Time     `json:"created_at"`
	Version   int64         `json:"version"` // raised by every change
	Org       OrgID         `json:"-"`       // whose it is
	Person    UserID        `json:"-"`       // whose key Owner is; "" = a program's
}

// FirstPublicPort is the least port that a box with public ports shows to everybody.
const FirstPublicPort = 1024

// Environ is what every process of the box has in its environment: where it is, as the programs of E2B's
// sandboxes have it, and Vars, which win.
func (b *Box) Environ() map[string]string {
	env := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": string(b.ID), "E2B_TEMPLATE_ID": b.Template}
	maps.Copy(env, b.Vars)
	return env
}

// TimeoutPolicy says what happens at EndAt, and to who comes after. The zero value kills the box.
type TimeoutPolicy struct {
	Pause      bool `json:"pause,omitempty"`       // instead of killing
	DropMemory bool `json:"drop_memory,omitempty"` // and keep the files only
	Resume     bool `json:"resume,omitempty"`      // any use of a paused box resumes it
}

// BoxNetwork is what whoever made a box wants its network to be. It is a wish: the server's own bound on boxes
// holds besides. The zero value is everything that this bound leaves.
type BoxNetwork struct {
	Closed bool `json:"closed,omitempty"` // nothing is reachable but Allow
	// names, *.name, IP addresses or networks (CIDR); "*" is every host. With Deny: exceptions from it
	Allow []string `json:"allow,omitempty"`
	// networks no address of which is dialled, by whatever name; nothing with Closed
	Deny  []string `json:"deny,omitempty"`
	Proxy BoxProxy `json:"proxy,omitzero"` // what is allowed goes through it; zero = straight to the server
}

// BoxProxy is a SOCKS5 proxy of a client's. Its password is sealed with BoxHeaders, and never shown.
type BoxProxy struct {
	Address  string `json:"address"`            // host:port
	Username string `json:"username,omitempty"` // "" = it asks for none
	Password bool   `json:"password,omitempty"` // there is one
}

// IsZero reports whether there is none.
func (p BoxProxy) IsZero() bool { return p == BoxProxy{} }

// BoxHeaders are headers that the gateway sets on a box's requests. Their values are sealed, with the password
// of the box's proxy, and never shown.
type BoxHeaders struct {
	Credential CredentialID        `json:"credential,omitempty"` // what they are sealed as; "" = there are none
	Names      map[string][]string `json:"names,omitempty"`      // of headers, by host: a name, *.name or an IP address
}

// BoxSnapshot is a saved state of a box: its files, and how machines for them are made. It outlives the box.
type BoxSnapshot struct {
	ID        SnapshotID `json:"id"`
	Name      string     `json:"name,omitempty"` // unique when set
	Box       BoxID      `json:"box"`
	Owner     KeyID      `json:"owner"`
	Env       EnvConfig  `json:"env"`
	Files     BlobRef    `json:"files"`
	CreatedAt time.Time  `json:"created_at"`
	Org       OrgID      `json:"-"` // whose it is
}
