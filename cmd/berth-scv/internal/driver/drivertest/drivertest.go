// Package drivertest has machines with GPUs for tests.
package drivertest

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// Reserved is how much of a card's memory the driver has for itself, in bytes.
const Reserved = 615 << 20

// Machine is a DGX A100 of 8 cards, GPU-0 to GPU-7, with what NVIDIA's mock of it lacks. Its cards can be changed between two readings.
type Machine struct {
	*server.Server
	Cards  []*server.Device
	Events []nvml.EventData // that are to come
	Wait   nvml.Return      // what a wait says if there are none
	Sets   int              // that are not freed
}

// DGX returns a new one.
func DGX() *Machine {
	m := &Machine{Server: dgxa100.New(), Wait: nvml.ERROR_TIMEOUT}
	m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		m.Sets++
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(m.Events) == 0 {
					return nvml.EventData{}, m.Wait
				}
				next := m.Events[0]
				m.Events = m.Events[1:]
				return next, nvml.SUCCESS
			},
			FreeFunc: func() nvml.Return { m.Sets--; return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	for i, d := range m.Devices {
		d := d.(*server.Device)
		d.UUID = fmt.Sprintf("GPU-%d", i)
		d.MemoryInfo.Free = 40000 << 20
		d.MemoryInfo.Total += Reserved
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
			m, ret := d.GetMemoryInfo()
			return nvml.Memory_v2{Total: m.Total, Reserved: Reserved, Free: m.Free, Used: m.Used}, ret
		}
		d.GetMaxClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_MEM: 1215, nvml.CLOCK_SM: 1410, nvml.CLOCK_GRAPHICS: 1400}[c], nvml.SUCCESS
		}
		d.GetMaxPcieLinkGenerationFunc = func() (int, nvml.Return) { return 4, nvml.SUCCESS }
		d.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
		d.GetPowerManagementLimitFunc = func() (uint32, nvml.Return) { return 400_000, nvml.SUCCESS }
		d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
		d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, false, false, nvml.SUCCESS }
		d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
		d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
		m.Cards = append(m.Cards, d)
	}
	return m
}
