package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
)

// maxLine bounds a line of an export: a record's detail and what is around it.
const maxLine = 2*outboard.MaxEventData + 1<<20

// event is an entry in the shape of the Open Cybersecurity Schema Framework, version 1.3: API Activity (6003),
// and HTTP Activity (4002) for requests. What the shape has no place for is below unmapped.
type event struct {
	Class     int            `json:"class_uid"`
	ClassName string         `json:"class_name"`
	Category  int            `json:"category_uid"`
	Activity  int            `json:"activity_id"`
	Type      int            `json:"type_uid"`
	Severity  int            `json:"severity_id"`
	Time      int64          `json:"time"` // ms
	Status    int            `json:"status_id"`
	Action    int            `json:"action_id"`
	Message   string         `json:"message,omitempty"`
	Metadata  eventMetadata  `json:"metadata"`
	Actor     map[string]any `json:"actor"`
	From      *endpoint      `json:"src_endpoint,omitempty"`
	To        *endpoint      `json:"dst_endpoint,omitempty"`
	API       map[string]any `json:"api,omitempty"`
	HTTP      map[string]any `json:"http_request,omitempty"`
	Resources []eventName    `json:"resources,omitempty"`
	Unmapped  struct {
		Outboard Entry `json:"outboard"`
	} `json:"unmapped"`
}

type eventMetadata struct {
	Version  string            `json:"version"`
	UID      string            `json:"uid"`
	Sequence int64             `json:"sequence"`
	Profiles []string          `json:"profiles"` // of attributes that the classes by themselves do not have: action_id
	Product  map[string]string `json:"product"`
}

// endpoint is one end of an activity. An API Activity must have its source and an HTTP Activity one of both;
// addresses of clients are not recorded, so the source is known by who acted.
type endpoint struct {
	UID      string `json:"uid,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Port     int    `json:"port,omitempty"`
}

type eventName struct {
	Name string `json:"name"`
}

// Values of OCSF.
const (
	httpActivity, apiActivity         = 4002, 6003
	severityInfo, severityLow         = 1, 2
	actionAllowed, actionDenied       = 1, 2
	statusSuccess, statusFailure      = 1, 2
	activityOther                     = 99
	categoryNetwork, categoryActivity = 4, 6
)

// methods are OCSF's activities of HTTP Activity.
var methods = map[string]int{"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7,
	"TRACE": 8}

// Export returns an entry as one line.
func Export(e Entry, version string) ([]byte, error) {
	ev := event{Class: apiActivity, ClassName: "API Activity", Category: categoryActivity, Activity: activityOther,
		Severity: severityInfo,
		Time:     e.At.UnixMilli(), Status: statusSuccess, Action: actionAllowed, Message: e.Rule,
		Metadata: eventMetadata{Version: "1.3.0", UID: fmt.Sprint(e.Num), Sequence: e.Num,
			Profiles: []string{"security_control"},
			Product:  map[string]string{"name": "Outboard", "vendor_name": "Outboard", "version": version}},
		Actor: map[string]any{"user": map[string]string{"uid": e.Actor, "domain": e.Org}},
		From:  &endpoint{UID: e.Actor}}
	ev.Unmapped.Outboard = e
	if e.Decision != outboard.Allowed {
		ev.Severity, ev.Status, ev.Action = severityLow, statusFailure, actionDenied
	}
	method, target, ok := strings.Cut(e.Resource, " ")
	if u, err := url.Parse(target); ok && e.Action == "http.request" && err == nil {
		ev.Class, ev.ClassName, ev.Category = httpActivity, "HTTP Activity", categoryNetwork
		if n := methods[method]; n != 0 {
			ev.Activity = n
		}
		ev.HTTP = map[string]any{"http_method": method, "url": map[string]string{"url_string": target,
			"scheme": u.Scheme, "hostname": u.Hostname(), "path": u.Path}}
		port, _ := strconv.Atoi(u.Port()) // 0 = the scheme's
		ev.To = &endpoint{Hostname: u.Hostname(), Port: port}
	} else {
		ev.API = map[string]any{"operation": e.Action}
		ev.Resources = []eventName{{e.Resource}}
	}
	ev.Type = ev.Class*100 + ev.Activity
	b, err := json.Marshal(ev)
	if err != nil {
		return nil, fmt.Errorf("encoding record %d: %w", e.Num, err)
	}
	return append(b, '\n'), nil
}

// Exported reads what Export wrote.
func Exported(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 64<<10), maxLine)
		n := 0
		for lines.Scan() {
			n++
			var ev event
			if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
				yield(Entry{}, outboard.Errorf(outboard.Invalid, "line %d is not one of an export: %w", n, err))
				return
			}
			if !yield(ev.Unmapped.Outboard, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Entry{}, outboard.Errorf(outboard.Invalid, "reading line %d: %w", n+1, err))
		}
	}
}
