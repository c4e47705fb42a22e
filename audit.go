package outboard

import "time"

// AuditRecord is one decision about one effect, written before the effect: who wanted what, what was decided,
// and by which rule.
type AuditRecord struct {
	Num      int64     `json:"num"` // set by the store, in the order of writing
	At       time.Time `json:"at"`
	Org      string    `json:"org,omitempty"`
	Actor    string    `json:"actor"`    // a session or a key
	Action   string    `json:"action"`   // e.g. http.request
	Resource string    `json:"resource"` // what it is done to, e.g. "GET https://host/path"
	Decision string    `json:"decision"` // allow or deny
	Rule     string    `json:"rule"`     // what decided
	Detail   Raw       `json:"detail,omitempty"`
}

// The decisions of an AuditRecord.
const (
	Allowed = "allow"
	Refused = "deny"
)

// NetGrant lets one session reach a host beyond what its environment allows.
type NetGrant struct {
	ID        NetGrantID `json:"id"`
	Session   SessionID  `json:"session_id"`
	Host      string     `json:"host"` // a name or *.name
	Port      int        `json:"port"` // 0 = 80 and 443
	Uses      int        `json:"uses"` // requests left; -1 = without end
	WebSocket bool       `json:"websocket,omitempty"`
	By        string     `json:"by"` // who granted it
	CreatedAt time.Time  `json:"created_at"`
}
