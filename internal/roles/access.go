package roles

import (
	"slices"

	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// anyone is a caller with or without a certificate.
const anyone coord.Role = ""

var (
	everyRole = []coord.Role{coord.RoleBinder, coord.RoleQueue, coord.RoleFilterWorker, coord.RoleScoreWorker, coord.RoleGateway}
	inner     = []coord.Role{coord.RoleBinder, coord.RoleQueue, coord.RoleFilterWorker, coord.RoleScoreWorker}
	followers = []coord.Role{coord.RoleQueue, coord.RoleFilterWorker, coord.RoleScoreWorker, coord.RoleGateway}
)

func only(role coord.Role) []coord.Role { return []coord.Role{role} }

// rights say, where roles prove who they are, which roles serve an RPC and which may call it there. What is not listed
// is refused by both sides. People call only the gateway; who of them may do what, a guard decides.
var rights = []struct {
	servers, callers []coord.Role
	methods          []string
}{
	{only(coord.RoleBinder), followers, []string{
		logv1.LogService_Follow_FullMethodName,
	}},
	{only(coord.RoleBinder), only(coord.RoleQueue), []string{
		binderv1.BinderService_Commit_FullMethodName,
		binderv1.BinderService_Report_FullMethodName,
		binderv1.BinderService_Preempt_FullMethodName,
		binderv1.BinderService_Ask_FullMethodName,
		binderv1.BinderService_AskPreempt_FullMethodName,
		binderv1.BinderService_AskPostFilter_FullMethodName,
		binderv1.BinderService_AskPreEnqueue_FullMethodName,
		binderv1.BinderService_PlaceGroup_FullMethodName,
	}},
	{only(coord.RoleBinder), only(coord.RoleGateway), []string{
		binderv1.BinderService_GetPluginServices_FullMethodName,
		binderv1.BinderService_DescribePluginService_FullMethodName,
		binderv1.BinderService_JudgeHypothetical_FullMethodName,
	}},
	{only(coord.RoleFilterWorker), only(coord.RoleQueue), []string{
		filterv1.FilterService_Filter_FullMethodName,
		filterv1.FilterService_DryRunPreemption_FullMethodName,
	}},
	{only(coord.RoleScoreWorker), only(coord.RoleQueue), []string{
		scorev1.ScoreService_Score_FullMethodName,
	}},
	{only(coord.RoleQueue), only(coord.RoleQueue), []string{
		queuev1.QueueService_WatchPriorityFloors_FullMethodName,
	}},
	{only(coord.RoleQueue), only(coord.RoleGateway), []string{
		queuev1.QueueService_ListPending_FullMethodName,
		queuev1.QueueService_GetPending_FullMethodName,
		queuev1.QueueService_GetShards_FullMethodName,
		queuev1.QueueService_Activate_FullMethodName,
	}},
	{everyRole, only(coord.RoleGateway), []string{
		memberv1.MemberService_GetMember_FullMethodName,
		memberv1.MemberService_Drain_FullMethodName,
	}},
	{only(coord.RoleGateway), only(anyone), []string{
		schedulingv1.SchedulingService_GetStatus_FullMethodName,
		schedulingv1.SchedulingService_ListPods_FullMethodName,
		schedulingv1.SchedulingService_GetPod_FullMethodName,
		schedulingv1.SchedulingService_ListNodes_FullMethodName,
		schedulingv1.SchedulingService_GetNode_FullMethodName,
		schedulingv1.SchedulingService_WatchPlacements_FullMethodName,
		schedulingv1.SchedulingService_ExplainPod_FullMethodName,
		schedulingv1.SchedulingService_WhatIf_FullMethodName,
		schedulingv1.SchedulingService_GetCapacity_FullMethodName,
		schedulingv1.SchedulingService_Compare_FullMethodName,
		schedulingv1.SchedulingService_GetMap_FullMethodName,
		schedulingv1.SchedulingService_GetQueue_FullMethodName,
		schedulingv1.SchedulingService_Apply_FullMethodName,
		schedulingv1.SchedulingService_Delete_FullMethodName,
		schedulingv1.SchedulingService_DrainMember_FullMethodName,
		reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName,
		reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName,
	}},
	{inner, everyRole, []string{
		reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName,
		reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName,
	}},
	{everyRole, only(anyone), []string{
		grpc_health_v1.Health_Check_FullMethodName,
		grpc_health_v1.Health_List_FullMethodName,
		grpc_health_v1.Health_Watch_FullMethodName,
	}},
}

// callersAt returns who may call what at a server of a role.
func callersAt(server coord.Role) map[string]rpc.Callers {
	callers := make(map[string]rpc.Callers)
	for _, row := range rights {
		if slices.Contains(row.servers, server) {
			for _, method := range row.methods {
				callers[method] = names(row.callers)
			}
		}
	}
	return callers
}

// serversOf returns which roles serve each RPC.
func serversOf() map[string][]string {
	servers := make(map[string][]string)
	for _, row := range rights {
		for _, method := range row.methods {
			servers[method] = append(servers[method], names(row.servers)...)
		}
	}
	return servers
}

func names(roles []coord.Role) []string {
	out := make([]string, len(roles))
	for i, r := range roles {
		out[i] = string(r)
	}
	return out
}
